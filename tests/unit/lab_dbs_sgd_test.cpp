// DBS-SGD: batches by speed, with and without a barrier.
#include <doctest/doctest.h>

#include "tests/unit/lab_test_support.h"
#include "tools/lab/references/registry.h"

using namespace gossipd;
using namespace gossipd::lab;

TEST_CASE(
    "faster machines get a larger part of DBS-SGD's batch, in proportion to their speed, and "
    "rounds have one pace") {
  ToyRun run = with({{"barrier", "true"}});
  run.speeds = {1, 2, 4, 1};
  run.machine.step_base_s = 0;
  ToyLab lab(make_dbs_sgd(), run);
  REQUIRE(lab.finish());
  for (const std::uint64_t steps : lab.recorder.steps) CHECK(steps == lab.recorder.steps[0]);
  // 32 samples a round at 8 units of speed: 4 samples of 0.25 ms, and the wires; equal batches
  // would take 8 of them.
  CHECK(lab.world.seconds_now() / static_cast<double>(lab.recorder.steps[0]) < 0.0017);
  CHECK(ToyEngine::excess(lab.model(0)) < 0.02);
}

TEST_CASE("DBS-SGD with equal batches is ASGD") {
  ToyRun run;
  run.speeds = {1, 2, 4, 1};
  ToyLab asgd(make_asgd(), run);
  run.knobs = {{"dead_band", "10"}};
  ToyLab dbs(make_dbs_sgd(), run);
  REQUIRE(asgd.finish());
  REQUIRE(dbs.finish());
  CHECK(std::ranges::equal(dbs.model(0), asgd.model(0)));
  CHECK(dbs.recorder.steps == asgd.recorder.steps);
}

TEST_CASE("without a barrier DBS-SGD's machines keep one pace, and nobody waits") {
  ToyRun run = with({{"momentum", "none"}});
  run.speeds = {1, 2, 4, 1};
  run.machine.step_base_s = 0;
  run.steps_each = 200;
  ToyLab dbs(make_dbs_sgd(), run);
  REQUIRE(dbs.finish());
  const auto [least, most] = std::ranges::minmax(dbs.recorder.steps);
  CHECK(static_cast<double>(least) > 0.85 * static_cast<double>(most));
  run.knobs = {{"momentum", "none"}};
  ToyLab asgd(make_asgd(), run);
  REQUIRE(asgd.finish());
  const auto [slow, fast] = std::ranges::minmax(asgd.recorder.steps);
  CHECK(static_cast<double>(slow) < 0.5 * static_cast<double>(fast));
}

TEST_CASE("DBS-SGD weighs a gradient by its batch, in parts of the job's") {
  ToyRun run = with({{"momentum", "none"}, {"batch_min", "16"}, {"batch_max", "16"}});
  run.speeds = {1};
  run.steps_each = 3;  // 24 samples: 8, then 16
  run.constant_rate = true;
  ToyLab lab(make_dbs_sgd(), run);
  REQUIRE(lab.finish());
  std::vector<float> x(ToyEngine::floats, 0.25f), g(ToyEngine::floats);
  ToyEngine engine(0, 1);
  const auto rate = static_cast<float>(run.learning_rate);
  engine.gradient(x, 0, 8, g);
  for (std::size_t p = 0; p < x.size(); ++p) x[p] -= rate * g[p];
  engine.gradient(x, 8, 16, g);
  for (std::size_t p = 0; p < x.size(); ++p) x[p] -= rate * 2 * g[p];
  const auto found = lab.model(0);
  for (std::size_t p = 0; p < x.size(); ++p) CHECK(found[p] == doctest::Approx(x[p]));
}
