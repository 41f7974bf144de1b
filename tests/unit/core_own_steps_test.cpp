// What own steps have done: measured, judged, added up.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/node/own_steps.h"

using namespace gossipd;

namespace {

using Floats = std::vector<float>;

Schema two_blocks() {
  auto schema = Schema::build(
      {Segment{.name = "a", .shape = {4}, .offset = 0, .size = 4},
       Segment{.name = "b", .shape = {1}, .offset = 4, .size = 1, .kind = SegmentKind::statistic}});
  REQUIRE(schema);
  return *schema;
}

struct Fixture {
  ExchangePolicy policy;
  Schema schema = two_blocks();
  OwnSteps steps{policy, schema};
  Snapshot snapshot;

  Fixture() {
    snapshot.learning_rate = snapshot.learning_rate_peak = 0.1;
    snapshot.loss = snapshot.loss_worst = 0.5;
  }

  OwnSteps::Verdict look(const Floats& now, const Floats& before, Step count = 2) {
    steps.begin(true);
    for (std::size_t i = 0; i < schema.blocks().size(); ++i)
      steps.add(i, OwnSteps::norms_of(schema.blocks()[i].of(std::span(now)),
                                      schema.blocks()[i].of(std::span(before))));
    const auto verdict = steps.judge(snapshot, count);
    if (verdict == OwnSteps::Verdict::believed)
      for (std::size_t i = 0; i < schema.blocks().size(); ++i)
        steps.add(i, schema.blocks()[i].of(std::span(now)),
                  schema.blocks()[i].of(std::span(before)), count);
    return verdict;
  }
};

constexpr float infinite = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE_FIXTURE(Fixture, "what believed looks travel is added up for each block") {
  CHECK(look({4, 3, 0, 0, 1}, {1, -1, 0, 0, 1}) == OwnSteps::Verdict::believed);
  CHECK(look({4, 3, 0, 2, 1.5f}, {4, 3, 0, 0, 1}) == OwnSteps::Verdict::believed);
  REQUIRE(steps.travelled().size() == 2);
  CHECK(steps.travelled()[0] == doctest::Approx(5 + 2));
  CHECK(steps.travelled()[1] == doctest::Approx(0.5));
}

TEST_CASE_FIXTURE(Fixture, "the usual step of a parameter is the median, in step with the rate") {
  CHECK(steps.usual_step(0.1) == 0);  // nothing is known
  for (const float far : {4.0f, 2.0f, 3.0f}) {
    // Two steps at 0.1 move the four parameters by a root of the mean square of far / 2 in all.
    CHECK(look({far, 0, 0, 0, 1}, {0, 0, 0, 0, 1}) == OwnSteps::Verdict::believed);
  }
  CHECK(steps.usual_step(0.1) == doctest::Approx(3.0 / 2 / 2));
  CHECK(steps.usual_step(0.05) == doctest::Approx(3.0 / 2 / 4));
  snapshot.learning_rate = 0;  // at the end of a schedule
  for (int i = 0; i < 9; ++i) (void)look({1, 0, 0, 0, 1}, {0, 0, 0, 0, 1});
  CHECK(steps.usual_step(0.1) == doctest::Approx(3.0 / 2 / 2));
  steps.forget();
  CHECK(steps.usual_step(0.1) == 0);
}

TEST_CASE_FIXTURE(Fixture, "usual steps are known without a guard and without a learning rate") {
  policy.guard.step_jump = 0;
  snapshot.learning_rate = snapshot.learning_rate_peak = 0;
  CHECK(look({8, 0, 0, 0, 1}, {0, 0, 0, 0, 1}) == OwnSteps::Verdict::believed);
  CHECK(steps.usual_step(0) == doctest::Approx(8.0 / 2 / 2));
}

TEST_CASE_FIXTURE(Fixture, "the drift is a moving average of the displacement per step") {
  CHECK(look({2, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, 2) == OwnSteps::Verdict::believed);
  const double blend = 1 - std::exp(-2 / policy.correction.drift_window_steps);
  REQUIRE(steps.drift().size() == 5);
  CHECK(steps.drift()[0] == doctest::Approx(blend));
  steps.forget();
  CHECK(steps.drift()[0] == 0);
}

TEST_CASE_FIXTURE(Fixture, "the steps of a model that comes back from far away are no drift") {
  CHECK(look({1.1f, 0, 0, 0, 0}, {1, 0, 0, 0, 0}) == OwnSteps::Verdict::believed);
  CHECK(steps.drift()[0] > 0);
  for (const float far : {1e9f, 1e6f, 1e3f})
    CHECK(look({far / 1e3f, 0, 0, 0, 0}, {far, 0, 0, 0, 0}) == OwnSteps::Verdict::believed);
  CHECK(steps.drift()[0] == 0);
  CHECK(look({1.1f, 0, 0, 0, 0}, {1, 0, 0, 0, 0}) == OwnSteps::Verdict::believed);
  CHECK(steps.drift()[0] > 0);
}

TEST_CASE_FIXTURE(Fixture, "without an exchange nothing is followed") {
  policy.enabled = false;
  CHECK(look({2, 0, 0, 0, 0}, {0, 0, 0, 0, 0}) == OwnSteps::Verdict::believed);
  CHECK(steps.drift().empty());
  CHECK(steps.travelled().empty());
}

TEST_CASE_FIXTURE(Fixture, "a move that is not finite is taken back, until it never ends") {
  for (std::uint32_t i = 0; i < OwnSteps::tries_max; ++i)
    CHECK(look({infinite, 0, 0, 0, 0}, {1, 0, 0, 0, 0}) == OwnSteps::Verdict::take_back);
  CHECK(steps.last_jump() == Jump::not_finite);
  CHECK(look({infinite, 0, 0, 0, 0}, {1, 0, 0, 0, 0}) == OwnSteps::Verdict::broken);
  CHECK((steps.travelled().empty() || steps.travelled()[0] == 0));
}

TEST_CASE_FIXTURE(Fixture, "a trainer whose model is not finite gets its former one if that is") {
  const Floats former{1, 0, 0, 0, 0}, ruined{infinite, 0, 0, 0, 0};
  CHECK(steps.judge_not_finite(std::nullopt) == OwnSteps::Verdict::broken);
  CHECK(steps.judge_not_finite(former) == OwnSteps::Verdict::take_back);
  CHECK(steps.judge_not_finite(ruined) == OwnSteps::Verdict::broken);
}

TEST_CASE_FIXTURE(Fixture, "without a guard every move is believed, and what is ruined is broken") {
  policy.guard.step_jump = 0;
  const Floats former{1, 0, 0, 0, 0};
  CHECK(look({infinite, 0, 0, 0, 0}, former) == OwnSteps::Verdict::believed);
  CHECK(steps.judge_not_finite(former) == OwnSteps::Verdict::broken);
}
