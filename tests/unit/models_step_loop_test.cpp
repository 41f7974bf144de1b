// The account of a node's steps, driven alone: no engine, no thread, no core.
#include <doctest/doctest.h>

#include <array>
#include <limits>

#include "models/training/reported_loss.h"
#include "models/training/step_loop.h"

using namespace gossipd;
using Next = StepLoop::Next;
using State = StepLoop::State;

namespace {

constexpr std::uint32_t job_batch = 10;

Update update(Step snapshot_step, bool training = true) {
  return {.values = {1, 2}, .snapshot_step = snapshot_step, .training = training};
}

Update replacement(std::vector<float> values, Step snapshot_step) {
  return {.values = std::move(values), .replace = true, .snapshot_step = snapshot_step};
}

// A driver's boundary and the step after it, if there is to be one.
State one_turn(StepLoop& loop, double loss = 1, const StepLoop::Cluster& cluster = {}) {
  const State state = loop.at_boundary(cluster);
  if (loop.next() == Next::step)
    loop.on_step(
        {.loss = loss, .next_position = loop.data_position() + loop.batch(), .seconds = 0.5});
  return state;
}

StepLoop training_loop() {
  StepLoop loop(job_batch);
  loop.start(false);
  return loop;
}

Snapshot snapshot_of(StepLoop& loop, const StepLoop::Rates& rates = {}) {
  REQUIRE(loop.next() == Next::begin_snapshot);
  (void)loop.begin_snapshot(rates);
  return loop.hand_over();
}

}  // namespace

TEST_CASE("A loop makes no step before its first update, unless it is started without a hold") {
  StepLoop held(job_batch);
  CHECK(one_turn(held) == State::holding);
  CHECK(held.next() == Next::wait);
  held.take(update(5));
  CHECK(one_turn(held) == State::training);
  CHECK(held.step() == 1);

  StepLoop loop = training_loop();
  CHECK(one_turn(loop) == State::training);
  loop.start(true);
  CHECK(one_turn(loop) == State::holding);
  CHECK(loop.step() == 1);
}

TEST_CASE("A snapshot is due after as many steps as the update says, and steps go on beside it") {
  StepLoop loop = training_loop();
  loop.take(update(2));
  one_turn(loop);
  loop.at_boundary({});
  CHECK(loop.next() == Next::step);
  one_turn(loop);
  loop.at_boundary({});
  REQUIRE(loop.next() == Next::begin_snapshot);
  CHECK(loop.begin_snapshot({}).size() == 2);
  CHECK(loop.is_filling());
  CHECK_FALSE(loop.is_urgent());
  one_turn(loop);  // while the buffer is filled
  const Snapshot snapshot = loop.hand_over();
  CHECK(snapshot.step == 2);
  CHECK(snapshot.samples == 2 * job_batch);
  CHECK(loop.step() == 3);
  CHECK_FALSE(loop.has_loan());
}

TEST_CASE("Steps that a process made before it copied its model are in the snapshot's count") {
  StepLoop loop = training_loop();
  loop.take(update(1));
  loop.on_outside_steps({.step = 1, .samples = job_batch});
  loop.at_boundary({});
  REQUIRE(loop.next() == Next::begin_snapshot);
  (void)loop.begin_snapshot({});
  loop.on_outside_steps({.step = 7, .samples = 7 * job_batch});
  const Snapshot snapshot = loop.hand_over();
  CHECK(snapshot.step == 7);
  CHECK(snapshot.samples == 7 * job_batch);
}

TEST_CASE("A requested snapshot is due at the next boundary; without a loan nothing is") {
  StepLoop loop = training_loop();
  loop.request_snapshot();
  loop.take(update(1000));
  one_turn(loop);
  loop.at_boundary({});
  CHECK(loop.next() == Next::step);
  loop.request_snapshot();
  CHECK(loop.is_urgent());
  CHECK(loop.next() == Next::begin_snapshot);
  CHECK(snapshot_of(loop).step == 1);
  CHECK(loop.next() == Next::step);
}

TEST_CASE("A loop that is told not to train gives its snapshot at once, then waits") {
  StepLoop loop = training_loop();
  loop.take(update(1000, false));
  CHECK(loop.at_boundary({}) == State::holding);
  CHECK(loop.is_urgent());
  CHECK(snapshot_of(loop).step == 0);
  CHECK(loop.next() == Next::wait);
  loop.take(update(1));
  CHECK(loop.at_boundary({}) == State::training);
}

TEST_CASE("What all have trained on ends the steps at the budget, from the next boundary on") {
  StepLoop loop = training_loop();
  loop.take(update(1000));
  CHECK(one_turn(loop, 1, {.others = 5, .budget = 16}) == State::training);
  CHECK(one_turn(loop, 1, {.others = 6, .budget = 16}) == State::finished);
  CHECK(loop.step() == 1);
  CHECK(snapshot_of(loop).samples == job_batch);
  CHECK(one_turn(loop, 1, {.others = 6, .budget = 17}) == State::training);  // extended
}

TEST_CASE("An update's batch and rate hold from the next step on, and the snapshot reports them") {
  StepLoop loop = training_loop();
  one_turn(loop);
  CHECK(loop.step_seconds() == 0.5);
  Update wanted = update(2);
  wanted.batch = 25;
  wanted.rate_scale = 2.5;
  loop.take(std::move(wanted));
  CHECK(loop.step_seconds() == 0);  // was of another batch
  one_turn(loop);
  loop.at_boundary({});
  const Snapshot snapshot = snapshot_of(loop, {.now = 0.1, .peak = 0.4});
  CHECK(snapshot.batch == 25);
  CHECK(snapshot.job_batch == job_batch);
  CHECK(snapshot.samples == job_batch + 25);
  CHECK(snapshot.learning_rate == doctest::Approx(0.25));
  CHECK(snapshot.learning_rate_peak == doctest::Approx(1.0));
  loop.take(update(1));  // names no batch
  CHECK(loop.batch() == job_batch);
  CHECK(loop.rate_scale() == 1);
}

TEST_CASE("Where steps are made outside, no update changes their batch or rate") {
  StepLoop loop(job_batch, true);
  loop.start(false);
  Update wanted = update(1);
  wanted.batch = 25;
  wanted.rate_scale = 2.5;
  loop.take(std::move(wanted));
  loop.on_outside_steps({.step = 1, .samples = 64, .seconds = 0.5});
  loop.at_boundary({});
  const Snapshot snapshot = snapshot_of(loop, {.now = 0.1, .peak = 0.4});
  CHECK(snapshot.batch_is_fixed);
  CHECK(snapshot.batch == 64);
  CHECK(snapshot.step_seconds == 0.5);
  CHECK(snapshot.learning_rate == 0.1);
  CHECK(snapshot.learning_rate_peak == 0.4);
}

TEST_CASE("The batch of steps made outside is what their samples say, whatever the job's is") {
  StepLoop loop(job_batch, true);
  CHECK(loop.batch() == job_batch);  // nothing better is known
  loop.on_outside_steps({.step = 4, .samples = 256, .seconds = 0.5});
  CHECK(loop.batch() == 64);
  loop.on_outside_steps({.step = 4, .samples = 256});  // no step
  CHECK(loop.batch() == 64);
  for (Step step = 5; step < 100; ++step)
    loop.on_outside_steps({.step = step, .samples = loop.samples() + 16});
  CHECK(loop.batch() == 16);
  CHECK(loop.step_seconds() == 0.5);
}

TEST_CASE("A batch of the same size keeps the smoothed step time, named or not") {
  StepLoop loop = training_loop();
  one_turn(loop);
  Update wanted = update(1);
  wanted.batch = job_batch;
  loop.take(std::move(wanted));
  CHECK(loop.step_seconds() == 0.5);
}

TEST_CASE("Loss and step time are smoothed, and the worst loss is of the steps since a snapshot") {
  StepLoop loop = training_loop();
  loop.take(update(3));
  one_turn(loop, 4);
  CHECK(loop.loss() == 4);
  one_turn(loop, 9);
  one_turn(loop, 4);
  CHECK(loop.loss() == doctest::Approx(17.0 / 3));  // the mean of the first 50
  CHECK(loop.step_seconds() == doctest::Approx(0.5));
  loop.at_boundary({});
  CHECK(snapshot_of(loop).loss_worst == 9);
  loop.take(update(loop.step() + 1));
  one_turn(loop, 3);
  loop.at_boundary({});
  CHECK(snapshot_of(loop).loss_worst == 3);
}

TEST_CASE("A slow node's loss does not stay where it began") {
  StepLoop loop = training_loop();
  for (int i = 1; i <= 25; ++i) one_turn(loop, i == 1 ? 2.3 : 0.3);
  CHECK(loop.loss() == doctest::Approx(0.38));
  // Later the last 50 count.
  for (int i = 1; i <= 225; ++i) one_turn(loop, 0.3);
  const double before = loop.loss();
  one_turn(loop, 1.3);
  CHECK(loop.loss() == doctest::Approx(before + 0.02 * (1.3 - before)));
}

TEST_CASE("A replaced model's loss begins with its first step") {
  StepLoop loop = training_loop();
  one_turn(loop, 8);
  loop.take(replacement({3, 4}, 2));
  one_turn(loop, 2);
  CHECK(loop.loss() == 2);
}

TEST_CASE("The worst loss of a model that was replaced says nothing about the new one") {
  StepLoop loop = training_loop();
  loop.take(update(1));
  one_turn(loop, 3);
  REQUIRE(loop.next() == Next::begin_snapshot);
  (void)loop.begin_snapshot({});
  loop.on_step({.loss = std::numeric_limits<double>::infinity()});  // beside the filling
  CHECK_FALSE(loop.hand_over().finite);
  loop.take(replacement({3, 4}, 3));
  one_turn(loop, 2);
  loop.at_boundary({});
  CHECK(snapshot_of(loop).loss_worst == 2);
}

TEST_CASE("A device's step reports the loss of the step before, a replaced model's first its own") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool late : {true, false}) {
    CAPTURE(late);
    ReportedLoss reported(late);
    std::array<double, 2> losses{};
    std::array<bool, 2> inconclusive{};
    std::size_t turn = 0;
    const auto step = [&](double loss, bool overflows = false) {
      turn = 1 - turn;
      losses[turn] = loss;
      inconclusive[turn] = overflows;
      const std::size_t read = reported.turn_to_read(turn);
      return reported.report(losses[read], inconclusive[read]);
    };
    CHECK(reported.is_first());
    CHECK(step(5) == 5);
    CHECK_FALSE(reported.is_first());
    CHECK(step(4) == (late ? 5 : 4));
    CHECK(step(3) == (late ? 4 : 3));
    (void)step(nan);
    reported.begin_anew();
    CHECK(reported.is_first());
    CHECK(step(2) == 2);
    CHECK(step(1) == (late ? 2 : 1));
    (void)step(nan);
    CHECK(std::isnan(step(nan, /*overflows=*/true)));  // the last that says something
    reported.begin_anew();
    CHECK(step(7) == 7);
    (void)step(7);
    (void)step(nan, /*overflows=*/true);
    CHECK(step(nan, /*overflows=*/true) == 7);
  }
}

TEST_CASE("A loss or a model that is not finite stops the steps until a finite model comes") {
  StepLoop loop = training_loop();
  loop.take(update(1000));
  one_turn(loop, 5);
  SUBCASE("loss") { one_turn(loop, std::numeric_limits<double>::quiet_NaN()); }
  SUBCASE("model") { loop.on_not_finite(); }
  CHECK(loop.loss() == 5);
  CHECK(loop.at_boundary({}) == State::not_finite);
  CHECK_FALSE(snapshot_of(loop).finite);
  CHECK(loop.next() == Next::wait);
  loop.take(update(1));
  CHECK(loop.at_boundary({}) == State::not_finite);
  (void)snapshot_of(loop);
  loop.take(replacement({1, std::numeric_limits<float>::infinity()}, 1));
  CHECK(loop.at_boundary({}) == State::not_finite);
  (void)snapshot_of(loop);
  loop.take(replacement({1, 2}, 1));
  CHECK(loop.at_boundary({}) == State::training);
}

TEST_CASE("A model found broken while it was handed over is not stepped on") {
  StepLoop loop = training_loop();
  loop.take(update(1));
  one_turn(loop);
  REQUIRE(loop.at_boundary({}) == State::training);
  (void)loop.begin_snapshot({});
  loop.on_not_finite();
  CHECK_FALSE(loop.hand_over().finite);
  CHECK(loop.next() == Next::wait);
}

TEST_CASE("Counters come back from a checkpoint; samples and position only ever rise") {
  StepLoop loop = training_loop();
  loop.restore({.step = 7, .samples = 70, .data_position = 90}, 1.5);
  CHECK(loop.loss() == 1.5);
  loop.raise_samples(60);
  CHECK(loop.samples() == 70);
  loop.raise_samples(75);
  loop.skip_to(80);
  CHECK(loop.data_position() == 90);
  loop.skip_to(100);
  one_turn(loop, 1.5);
  CHECK(loop.counters().step == 8);
  CHECK(loop.counters().samples == 85);
  CHECK(loop.counters().data_position == 110);
}

TEST_CASE("A restored model is what a snapshot that had begun is made of") {
  StepLoop loop = training_loop();
  loop.take(update(1));
  one_turn(loop);
  loop.at_boundary({});
  (void)loop.begin_snapshot({});
  loop.restore({.step = 40, .samples = 400, .data_position = 400});
  CHECK_FALSE(loop.is_filling());
  CHECK(snapshot_of(loop).step == 40);
}
