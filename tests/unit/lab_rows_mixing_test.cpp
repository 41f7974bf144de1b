// What machines of the reference rows say to each other, and what they make of a gradient.
#include <doctest/doctest.h>

#include "tests/unit/lab_test_support.h"

using namespace gossipd;
using namespace gossipd::lab;

// Mean over machines and parameters of the squared distance from the machines' mean.
double spread(ToyLab& lab, std::size_t machines) {
  double sum = 0;
  for (std::size_t p = 0; p < ToyEngine::floats; ++p) {
    double mean = 0;
    for (std::size_t i = 0; i < machines; ++i) mean += lab.model(i)[p] / machines;
    for (std::size_t i = 0; i < machines; ++i)
      sum += (lab.model(i)[p] - mean) * (lab.model(i)[p] - mean) / machines;
  }
  return sum / ToyEngine::floats;
}

TEST_CASE("without a last average, machines that exchange still end close to each other") {
  // Each machine is drawn to an optimum of its own; alone they end 0.005 apart.
  for (const Case& one : std::vector<Case>{{"gossip-sgd", {}},
                                           {"gossip-sgd", {{"codec", "int8"}}},
                                           {"adaptive-gossip", {{"threshold", "0.0001"}}},
                                           {"eventgrad", {}},
                                           {"eventgrad", {{"codec", "int8"}}},
                                           {"ad-psgd", {}},
                                           {"ad-psgd", {{"codec", "top_k:64"}}},
                                           {"noloco", {{"period", "5"}}},
                                           {"noloco", {{"period", "5"}, {"codec", "top_k:256"}}}}) {
    CAPTURE(name_of(one));
    ToyRun run = with(one.knobs);
    run.knobs.emplace_back("final_average", "off");
    ToyLab lab(make(one.row), run);
    REQUIRE(lab.finish());
    CHECK(spread(lab, 4) < 0.001);
  }
  ToyRun alone = with({{"period", "1000000"}, {"final_average", "off"}});
  ToyLab lab(make("ad-psgd"), alone);
  REQUIRE(lab.finish());
  CHECK(spread(lab, 4) > 0.003);
}

TEST_CASE("an average of statistics is not undone by the gradient that was under way") {
  // Four machines' batches draw the statistic to 0, 1, 2 and 3: alone they end that far apart.
  for (const Case& one : std::vector<Case>{{"gossip-sgd", {}},
                                           {"eventgrad", {{"threshold_kind", "constant"}}},
                                           {"adaptive-gossip", {{"threshold", "0.0001"}}},
                                           {"ad-psgd", {}}}) {
    CAPTURE(name_of(one));
    ToyRun run = with(one.knobs);
    run.statistic = true;
    run.knobs.emplace_back("final_average", "off");
    ToyLab lab(make(one.row), run);
    REQUIRE(lab.finish());
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      CHECK(std::abs(lab.model(i)[ToyEngine::floats] - 1.5f) < 0.75f);
    }
  }
}

TEST_CASE("weight decay and momentum leave statistics as they are") {
  for (const Case& one : std::vector<Case>{{"local-sgd", {{"period", "5"}}},
                                           {"diloco", {{"period", "5"}}},
                                           {"gossip-sgd", {}},
                                           {"ad-psgd", {}},
                                           {"noloco", {{"period", "5"}}},
                                           {"easgd", {}},
                                           {"asgd", {}},
                                           {"dana", {}},
                                           {"smega2", {}},
                                           {"sync-sgd", {}}}) {
    CAPTURE(name_of(one));
    ToyRun run = with(one.knobs);
    run.statistic = true;
    run.steps_each = 40;
    ToyLab without(make(one.row), run);
    run.weight_decay = 0.5;
    ToyLab lab(make(one.row), run);
    REQUIRE(without.finish());
    REQUIRE(lab.finish());
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      CHECK(lab.model(i)[0] != without.model(i)[0]);
      CHECK(lab.model(i)[ToyEngine::floats] == without.model(i)[ToyEngine::floats]);
    }
  }
}

TEST_CASE("NoLoCo averages statistics, whatever its outer step does to parameters") {
  ToyRun run = with({{"period", "1"}, {"outer_momentum", "0"}, {"outer_rate", "1"}});
  run.statistic = true;
  run.speeds = {1, 1};
  run.steps_each = 20;
  ToyLab mean(make("noloco"), run);
  run.knobs = {{"period", "1"}};
  ToyLab lab(make("noloco"), run);
  REQUIRE(mean.finish());
  REQUIRE(lab.finish());
  // Both machines' batches draw it by a tenth, to 0 and to 1.
  const float wanted = 0.5f * static_cast<float>(1 - std::pow(0.9, 20));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(mean.model(i)[ToyEngine::floats] == doctest::Approx(wanted).epsilon(1e-4));
    CHECK(lab.model(i)[ToyEngine::floats] == doctest::Approx(wanted).epsilon(1e-4));
  }
}

TEST_CASE("local SGD with overlap adds the average of a round ago to what was learned since") {
  constexpr int rounds = 7, period = 3;
  ToyRun run = with({{"period", "3"}, {"overlap", "true"}});
  run.statistic = true;
  run.speeds = {1, 1};
  ToyLab lab(make("local-sgd"), run);
  while (lab.recorder.steps.size() < 2 || std::ranges::min(lab.recorder.steps) < rounds * period)
    REQUIRE(lab.world.advance());
  // Each batch draws the statistic by a tenth, on one machine to 0 and on the other to 1.
  std::array<double, 2> x{}, sent{};
  for (int round = 0; round < rounds; ++round) {
    for (int step = 0; step < period; ++step)
      for (std::size_t i = 0; i < 2; ++i) x[i] += 0.1 * (static_cast<double>(i) - x[i]);
    const double mean = (sent[0] + sent[1]) / 2;
    for (std::size_t i = 0; i < 2; ++i) sent[i] = x[i] += mean - sent[i];
  }
  CHECK(x[1] - x[0] > 0.2);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(lab.model(i)[ToyEngine::floats] == doctest::Approx(x[i]).epsilon(1e-4));
}

TEST_CASE("local SGD with overlap waits only for what an average takes longer than a round") {
  // 40 steps of 4 ms. An average takes two latencies, and the last one is always waited for.
  const auto milliseconds = [](const char* overlap, double latency_s) {
    ToyRun run = with({{"period", "10"}, {"overlap", overlap}});
    run.speeds = {1, 1};
    run.steps_each = 40;
    run.wire.latency_s = latency_s;
    ToyLab lab(make("local-sgd"), run);
    REQUIRE(lab.finish());
    return 1000 * lab.world.seconds_now();
  };
  CHECK(milliseconds("false", 0.015) == doctest::Approx(160 + 4 * 30).epsilon(0.02));
  CHECK(milliseconds("true", 0.015) == doctest::Approx(160 + 30).epsilon(0.02));
  CHECK(milliseconds("true", 0.050) == doctest::Approx(40 + 3 * 100 + 100).epsilon(0.02));
}

TEST_CASE("a row that averages with all of what it heard refuses a codec that says a part of it") {
  for (const char* row : {"gossip-sgd", "adaptive-gossip", "eventgrad", "easgd"}) {
    CAPTURE(row);
    ToyLab sparse(make(row), with({{"codec", "top_k:64"}}));
    const auto mistake = sparse.strategy->mistake(sparse.job);
    REQUIRE(mistake);
    CHECK(mistake->starts_with("strategy.codec = \"top_k:64\": "));
    CHECK(mistake->ends_with("choose int8, int4 or ternary"));
    ToyLab dense(make(row), with({{"codec", "int4"}}));
    CHECK(!dense.strategy->mistake(dense.job));
  }
  ToyLab late(make("local-sgd"), with({{"codec", "int8"}}));
  CHECK(!late.strategy->mistake(late.job));
  late.set("overlap", "true");
  CHECK(late.strategy->mistake(late.job)->ends_with("set strategy.codec = \"fp32\""));
}

TEST_CASE("every row that descends clips the gradient as the job says") {
  // Without momentum 40 steps of at most 0.01 at a rate of 0.03 move by 40 * 0.03 * 0.01 at most; a
  // row may go beyond its budget by two rounds.
  for (const std::string row : {"sync-sgd", "local-sgd", "ad-psgd", "easgd", "asgd", "dbs-sgd"}) {
    CAPTURE(row);
    ToyRun run;
    run.steps_each = 10;
    run.constant_rate = true;
    ToyLab lab(make(row), run);
    lab.job.training.clip_norm = 0.01;
    lab.job.optimizer.momentum = 0;
    REQUIRE(lab.finish());
    double square = 0;
    for (const float x : lab.model(0)) square += (double{x} - 0.25) * (double{x} - 0.25);
    CHECK(std::sqrt(square) > 0);
    CHECK(std::sqrt(square) < 1.2 * 40 * 0.03 * 0.01);
  }
}

TEST_CASE("the mean of all models does not move by AD-PSGD's averaging") {
  // With machines that pull in opposite directions and a last average off, the mean still ends at
  // the common optimum.
  ToyRun run = with({{"final_average", "off"}});
  run.speeds = {1, 1, 1, 1, 1, 1};
  ToyLab lab(make("ad-psgd"), run);
  REQUIRE(lab.finish());
  std::vector<float> mean(ToyEngine::floats);
  for (std::size_t i = 0; i < 6; ++i) {
    const auto x = lab.model(i);
    for (std::size_t p = 0; p < mean.size(); ++p) mean[p] += x[p] / 6;
  }
  CHECK(ToyEngine::excess(mean) < 0.005);
}
