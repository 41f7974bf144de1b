// Every reference row on a toy problem: it learns, it ends, it repeats, whatever the machines and
// wires.
#include <doctest/doctest.h>

#include <set>

#include "core/codec/codec.h"
#include "tests/unit/lab_test_support.h"
#include "tools/lab/wire.h"

using namespace gossipd;
using namespace gossipd::lab;

namespace {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"asgd", {}},
      {"asgd", {{"momentum", "per-worker"}}},
      {"dana", {}},
      {"dana", {{"variant", "slim"}}},
      {"softsync", {{"staleness", "mean"}}},
      {"softsync", {{"n", "2"}}},
      {"softsync", {{"n", "4"}, {"staleness", "off"}}},
      {"easgd", {}},
      {"easgd", {{"codec", "int8"}, {"alpha", "0.3"}}},
      {"dc-asgd", {{"momentum", "shared"}}},
      {"dc-asgd", {{"mode", "constant"}, {"momentum", "shared"}}},
      {"smega2", {}},
      {"smega2", {{"horizon", "lag"}}},
      {"smega2", {{"naive", "true"}}},
      {"lc-asgd", {}},
      {"lc-asgd", {{"predictor", "lstm"}}},
      {"dbs-sgd", {}},
      {"dbs-sgd", {{"barrier", "true"}}},
      {"sync-sgd", {}},
      {"sync-sgd", {{"all_reduce", "halving-doubling"}, {"compression", "fp16"}}},
      {"sync-sgd", {{"all_reduce", "tree"}}},
      {"sync-sgd", {{"compression", "int8"}}},
      {"sync-sgd", {{"compression", "top-k"}, {"share", "0.1"}}},
      {"sync-sgd", {{"compression", "low-rank"}, {"rank", "2"}}},
      {"sync-sgd", {{"compression", "qsgd"}}},
      {"sync-sgd", {{"compression", "dgc"}, {"share", "0.1"}}},
      {"sync-sgd", {{"lars_trust", "0.1"}}},
      {"local-sgd", {}},
      {"local-sgd", {{"rule", "quadratic"}, {"alpha", "0.1"}}},
      {"local-sgd", {{"codec", "int4"}}},
      {"local-sgd", {{"overlap", "true"}}},
      {"local-sgd", {{"codec", "top_k:128"}, {"transport", "all-gather"}}},
      {"diloco", {{"period", "10"}}},
      {"sparseloco", {{"period", "5"}, {"codec", "top_k:256"}}},
      {"gossip-sgd", {}},
      {"gossip-sgd", {{"period", "4"}, {"codec", "int8"}}},
      {"gossip-sgd", {{"weight", "0.3"}, {"codec", "int4"}}},
      {"adaptive-gossip", {}},
      {"eventgrad", {}},
      {"eventgrad", {{"threshold_kind", "constant"}, {"codec", "int8"}}},
      {"ad-psgd", {}},
      {"ad-psgd", {{"codec", "int8"}}},
      {"ad-psgd", {{"codec", "top_k:64"}}},
      {"noloco", {{"period", "10"}}},
      {"noloco", {{"period", "10"}, {"codec", "int8"}}},
      {"noloco", {{"period", "5"}, {"codec", "top_k:256"}}},
  };
  return all;
}

}  // namespace

TEST_CASE("the rows are in alphabetical order, each has a knob, a summary and a source") {
  const auto& rows = reference_strategies();
  for (std::size_t k = 0; k < rows.size(); ++k) {
    CAPTURE(rows[k].name);
    if (k > 0) CHECK(rows[k - 1].name < rows[k].name);
    CHECK(!rows[k].summary.empty());
    CHECK(!rows[k].source.empty());
    const auto strategy = rows[k].make();
    CHECK(!strategy->settings().empty());
    for (const Setting& setting : strategy->settings()) {
      CAPTURE(setting.key);
      CHECK(setting.key.starts_with("strategy."));
      CHECK(!setting.set(setting.get()).has_value());
    }
  }
}

TEST_CASE(
    "every row gets near the optimum on four equal machines and spends its budget, beyond it by "
    "less than two rounds") {
  for (const Case& one : cases()) {
    CAPTURE(name_of(one));
    ToyLab lab(make(one.row), with(one.knobs));
    REQUIRE(lab.finish());
    CHECK(lab.recorder.samples() >= lab.recorder.budget);
    CHECK(lab.recorder.samples() < lab.recorder.budget + 2 * 4 * lab.job.batch);
    for (std::size_t i = 0; i < 4; ++i) CHECK(ToyEngine::excess(lab.model(i)) < 0.02);
    CHECK(!lab.world.advance());
  }
}

TEST_CASE("every row trains with AdamW or says why it cannot, and how to go on") {
  const std::set<std::string> only_sgd = {"dana", "smega2", "dc-asgd", "lc-asgd"};
  ToyRun run;
  run.optimizer = OptimizerSpec::Kind::adamw;
  for (const Case& one : cases()) {
    CAPTURE(name_of(one));
    run.knobs = one.knobs;
    ToyLab lab(make(one.row), run);
    const auto mistake = lab.strategy->mistake(lab.job);
    const bool divides_gradients =
        one.row == "softsync" && one.knobs != Knobs{{"n", "4"}, {"staleness", "off"}};
    const bool scales_steps =
        !one.knobs.empty() && (one.knobs[0].first == "lars_trust" || one.knobs[0].second == "dgc");
    CHECK(mistake.has_value() == (only_sgd.contains(one.row) || divides_gradients || scales_steps));
    if (mistake) {
      CHECK(mistake->ends_with(
          ": not defined for AdamW; set job.optimizer.kind = \"sgd\" or choose another row"));
      continue;
    }
    REQUIRE(lab.finish());
    for (std::size_t i = 0; i < 4; ++i) CHECK(ToyEngine::excess(lab.model(i)) < 0.02);
  }
}

TEST_CASE("a server without momentum has no AdamW, and every row takes a job with SGD") {
  Job adamw;
  adamw.optimizer.kind = OptimizerSpec::Kind::adamw;
  ToyLab lab(make("asgd"), with({{"momentum", "none"}}));
  CHECK(lab.strategy->mistake(adamw)->starts_with("strategy.momentum = \"none\" is plain SGD"));
  for (const StrategyEntry& entry : reference_strategies()) CHECK(!entry.make()->mistake(Job{}));
}

TEST_CASE("every row gives the same bytes twice, whatever the number of threads") {
  for (const Case& one : cases()) {
    CAPTURE(name_of(one));
    ToyRun run = with(one.knobs);
    run.steps_each = 40;
    run.machine.jitter = MachineSpec::Jitter::lognormal;
    ToyLab first(make(one.row), run);
    run.threads = 3;
    ToyLab second(make(one.row), run);
    REQUIRE(first.finish());
    REQUIRE(second.finish());
    for (std::size_t i = 0; i < 4; ++i) CHECK(first.model(i) == second.model(i));
    CHECK(first.world.traffic().bytes == second.world.traffic().bytes);
    CHECK(first.world.now() == second.world.now());
  }
}

TEST_CASE(
    "every row ends and learns with machines of different speeds, long delays and five or two or "
    "one of them") {
  for (const Case& one : cases())
    for (const std::vector<double>& speeds : {std::vector<double>{1, 4, 2, 0.5, 1}, {1, 3}, {1}}) {
      CAPTURE(name_of(one));
      CAPTURE(speeds.size());
      ToyRun run = with(one.knobs);
      run.speeds = speeds;
      run.learning_rate = 0.01;
      run.machine.jitter = MachineSpec::Jitter::pareto;
      run.machine.jitter_scale = 1.5;
      run.wire.latency_s = 0.03;
      run.wire.jitter_s = 0.01;
      ToyLab lab(make(one.row), run);
      const double before = ToyEngine::excess(lab.model(0));
      REQUIRE(lab.finish());
      CHECK(lab.recorder.samples() >= lab.recorder.budget);
      CHECK(ToyEngine::excess(lab.model(0)) < 0.4 * before);
    }
}

TEST_CASE("the quadratic rule's rounds are as long in a warm-up as right after it") {
  // alpha / peak = 3: nine steps a round, 33 rounds; by the rate of the warm-up's first step the
  // first round alone has 9 * 30^2.
  ToyRun run =
      with({{"rule", "quadratic"}, {"alpha", "0.09"}, {"period", "1"}, {"final_average", "false"}});
  run.constant_rate = true;
  ToyLab without(make("local-sgd"), run);
  run.warmup_steps = 30;
  ToyLab lab(make("local-sgd"), run);
  REQUIRE(without.finish());
  REQUIRE(lab.finish());
  CHECK(lab.world.traffic().bytes > 0);
  CHECK(lab.world.traffic().bytes == without.world.traffic().bytes);
}

TEST_CASE("with a learning rate of zero no row moves a model: mixing weights sum to one") {
  for (const Case& one : cases()) {
    CAPTURE(name_of(one));
    ToyRun run = with(one.knobs);
    run.learning_rate = 0;
    run.steps_each = 20;
    ToyLab lab(make(one.row), run);
    REQUIRE(lab.finish());
    for (std::size_t i = 0; i < 4; ++i)
      for (const float x : lab.model(i)) CHECK(x == doctest::Approx(0.25f).epsilon(1e-5));
  }
}

TEST_CASE("rows without a server hold one model at the end, unless the last average is off") {
  for (const char* row : {"gossip-sgd", "adaptive-gossip", "eventgrad", "ad-psgd", "noloco"}) {
    CAPTURE(row);
    ToyLab lab(make(row), {});
    REQUIRE(lab.finish());
    for (std::size_t i = 1; i < 4; ++i) CHECK(lab.model(i) == lab.model(0));
    ToyLab without(make(row), with({{"final_average", "off"}}));
    REQUIRE(without.finish());
    CHECK(without.model(1) != without.model(0));
  }
}

TEST_CASE("a last average in a codec costs fewer bytes, and leaves one model near the exact one") {
  for (const char* row : {"gossip-sgd", "adaptive-gossip", "eventgrad", "ad-psgd", "noloco",
                          "local-sgd", "diloco", "sparseloco"}) {
    CAPTURE(row);
    ToyLab exact(make(row), {});
    ToyLab coded(make(row), with({{"final_codec", "int8"}}));
    REQUIRE(exact.finish());
    REQUIRE(coded.finish());
    CHECK(coded.world.traffic().bytes < exact.world.traffic().bytes);
    const auto model = coded.model(0), wanted = exact.model(0);
    for (std::size_t i = 1; i < 4; ++i) CHECK(coded.model(i) == model);
    float largest = 0;
    for (const float x : wanted) largest = std::max(largest, std::abs(x));
    // It is rounded twice, to 127 steps up to the largest value of a chunk.
    for (std::size_t p = 0; p < model.size(); ++p)
      CHECK(std::abs(model[p] - wanted[p]) < largest / 127);
    CHECK(model != wanted);
  }
}

TEST_CASE("n-softsync updates the model once for every N/n gradients") {
  for (const std::uint64_t n : {1u, 2u, 4u}) {
    CAPTURE(n);
    ToyRun run = with({{"n", std::to_string(n)}});
    run.steps_each = 10;
    run.constant_rate = true;
    ToyLab lab(make("softsync"), run);
    std::uint64_t updates = 0;
    auto before = lab.model(0);
    while (!lab.strategy->finished()) {
      lab.world.advance();
      const auto now = lab.model(0);
      updates += now != before;
      before = now;
    }
    CHECK(updates == 40 / (4 / n));
  }
}

TEST_CASE("asynchronous gradients of N equal workers are N - 1 updates old") {
  ToyRun run;
  run.steps_each = 50;
  ToyLab lab(make("asgd"), run);
  REQUIRE(lab.finish());
  for (std::size_t k = 8; k < lab.recorder.ages.size(); ++k) CHECK(lab.recorder.ages[k] == 3.0);
}

TEST_CASE(
    "DANA-Zero's replies and DANA-Slim's model are the same path at a constant learning rate") {
  ToyRun run;
  run.constant_rate = true;
  run.steps_each = 100;
  run.learning_rate = 0.01;
  ToyLab zero(make("dana"), run);
  run.knobs = {{"variant", "slim"}};
  ToyLab slim(make("dana"), run);
  REQUIRE(zero.finish());
  REQUIRE(slim.finish());
  // Workers compute at what they are sent: the same losses in the same order.
  REQUIRE(zero.recorder.losses.size() == slim.recorder.losses.size());
  for (std::size_t k = 0; k < zero.recorder.losses.size(); ++k)
    CHECK(zero.recorder.losses[k] == doctest::Approx(slim.recorder.losses[k]).epsilon(1e-4));
}

TEST_CASE("SMEGA2 on two workers is the authors' two formulas, step by step") {
  constexpr double beta = 0.9;  // the job's momentum
  for (const bool naive : {false, true}) {
    CAPTURE(naive);
    ToyRun run = with({{"naive", naive ? "true" : "false"}});
    run.speeds = {1, 1};
    run.steps_each = 20;
    run.constant_rate = true;
    ToyLab lab(make("smega2"), run);
    REQUIRE(lab.finish());
    std::vector<double> x(ToyEngine::floats, 0.25), v(ToyEngine::floats), gathered(v);
    std::vector<std::vector<float>> sent(2, std::vector<float>(ToyEngine::floats, 0.25f));
    std::vector<float> g(ToyEngine::floats);
    for (std::size_t update = 0; update < 40; ++update) {
      const std::size_t worker = update % 2, s = (update + 1) % 2;
      ToyEngine(worker, 2).gradient(sent[worker], update / 2 * 8, 8, g);
      for (std::size_t p = 0; p < x.size(); ++p) {
        x[p] -= run.learning_rate * (g[p] + beta * v[p]);
        gathered[p] += g[p];
        if (s == 0) {
          v[p] = beta * v[p] + gathered[p] / 2;
          gathered[p] = 0;
        }
        const double ahead =
            naive ? 2 * v[p] : (2.0 + s * (beta - 1)) * v[p] + s / 2.0 * gathered[p];
        sent[worker][p] = static_cast<float>(x[p] - run.learning_rate * beta * ahead);
      }
    }
    const auto model = lab.model(0);
    for (std::size_t p = 0; p < x.size(); ++p)
      CHECK(model[p] == doctest::Approx(x[p]).epsilon(1e-4));
  }
}

TEST_CASE("synchronous SGD's bytes are the all-reduce's") {
  ToyRun run;
  run.steps_each = 10;
  ToyLab lab(make("sync-sgd"), run);
  REQUIRE(lab.finish());
  const std::uint64_t messages = 10 * 2 * 3 * 4;  // of a quarter of the model
  CHECK(lab.world.traffic().bytes == messages * on_the_wire(ToyEngine::floats));
}

TEST_CASE("synchronous SGD's first step with LARS is the formula, tensor by tensor") {
  ToyRun run = with({{"lars_trust", "0.1"}});
  run.speeds = {1};
  run.steps_each = 1;
  run.constant_rate = true;
  run.weight_decay = 0.3;
  ToyLab lab(make("sync-sgd"), run);
  REQUIRE(lab.finish());
  std::vector<float> x(ToyEngine::floats, 0.25f), g(ToyEngine::floats);
  ToyEngine(0, 1).gradient(x, 0, 8, g);
  const auto moved = lab.model(0);
  constexpr std::size_t weight = ToyEngine::rows * ToyEngine::columns;
  for (const auto& [begin, end] : {std::pair{std::size_t{0}, weight}, {weight, x.size()}}) {
    double x_square = 0, g_square = 0;
    for (std::size_t p = begin; p < end; ++p) {
      x_square += double{x[p]} * x[p];
      g_square += double{g[p]} * g[p];
    }
    const double rate = run.learning_rate * 0.1 * std::sqrt(x_square) /
                        (std::sqrt(g_square) + 0.3 * std::sqrt(x_square));
    for (std::size_t p = begin; p < end; ++p)
      CHECK(x[p] - moved[p] == doctest::Approx(rate * (g[p] + 0.3 * x[p])).epsilon(1e-3));
  }
}

TEST_CASE("on one machine, which sends nothing, DGC is SGD with momentum and weight decay") {
  ToyRun run;
  run.speeds = {1};
  run.steps_each = 50;
  run.weight_decay = 0.1;
  ToyLab plain(make("sync-sgd"), run);
  run.knobs = {{"compression", "dgc"}};
  ToyLab dgc(make("sync-sgd"), run);
  REQUIRE(plain.finish());
  REQUIRE(dgc.finish());
  const auto wanted = plain.model(0), model = dgc.model(0);
  for (std::size_t p = 0; p < model.size(); ++p)
    CHECK(model[p] == doctest::Approx(wanted[p]).epsilon(1e-4));
}

TEST_CASE("DGC refuses what its formula lacks, and says the way out") {
  ToyLab lab(make("sync-sgd"), with({{"compression", "dgc"}}));
  Job nesterov;
  nesterov.optimizer.nesterov = true;
  CHECK(lab.strategy->mistake(nesterov)->find("set job.optimizer.nesterov = false") !=
        std::string::npos);
  lab.set("lars_trust", "0.1");
  CHECK(lab.strategy->mistake(Job{})->find("set strategy.lars_trust = 0") != std::string::npos);
}

TEST_CASE("local SGD's bytes fall with the period") {
  std::uint64_t before = ~std::uint64_t{0};
  for (const char* period : {"1", "5", "20"}) {
    ToyLab lab(make("local-sgd"), with({{"period", period}}));
    REQUIRE(lab.finish());
    CHECK(lab.world.traffic().bytes < before);
    before = lab.world.traffic().bytes;
  }
  CHECK(before == 15 * 2 * 3 * 4 * on_the_wire(ToyEngine::floats));
}

TEST_CASE("rows say how many floats they keep beside the model") {
  const auto state_of = [](const std::string& row, const Knobs& knobs, std::size_t machines,
                           OptimizerSpec::Kind kind = OptimizerSpec::Kind::sgd) {
    ToyRun run = with(knobs);
    run.optimizer = kind;
    run.speeds.assign(machines, 1.0);
    run.steps_each = 2;
    ToyLab lab(make(row), run);
    lab.finish();
    return lab.strategy->state();
  };
  constexpr std::uint64_t p = ToyEngine::floats;
  for (const std::size_t n : {2u, 6u}) {
    CHECK(state_of("smega2", {}, n).server_floats == 2 * p);  // with the model 3P, whatever N is
    CHECK(state_of("asgd", {}, n).server_floats == p);
    CHECK(state_of("asgd", {{"momentum", "per-worker"}}, n).server_floats == n * p);
    CHECK(state_of("dana", {}, n).server_floats == (n + 1) * p);
    CHECK(state_of("dana", {{"variant", "slim"}}, n).node_floats == p);
    CHECK(state_of("dc-asgd", {{"mode", "constant"}}, n).server_floats == n * p);
    CHECK(state_of("sync-sgd", {}, n).node_floats == p);
    CHECK(state_of("sync-sgd", {{"compression", "qsgd"}}, n).node_floats == p);
    CHECK(state_of("sync-sgd", {{"compression", "dgc"}}, n).node_floats == 2 * p);
    CHECK(state_of("local-sgd", {}, n).node_floats == 2 * p);
    CHECK(state_of("local-sgd", {{"overlap", "true"}}, n).node_floats == 3 * p);
    CHECK(state_of("gossip-sgd", {}, n).node_floats == p);
    constexpr auto adamw = OptimizerSpec::Kind::adamw;
    CHECK(state_of("asgd", {{"momentum", "per-worker"}}, n, adamw).server_floats == n * 2 * p);
    CHECK(state_of("dbs-sgd", {}, n, adamw).server_floats == 2 * p);
    CHECK(state_of("dbs-sgd", {{"barrier", "true"}}, n, adamw).server_floats == 3 * p);
    CHECK(state_of("sync-sgd", {}, n, adamw).node_floats == 2 * p);
    CHECK(state_of("local-sgd", {}, n, adamw).node_floats == 3 * p);
    CHECK(state_of("noloco", {}, n, adamw).node_floats == 4 * p);
    CHECK(state_of("gossip-sgd", {}, n, adamw).node_floats == 2 * p);
  }
}
