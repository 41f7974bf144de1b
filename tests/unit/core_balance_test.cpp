// The minibatch from the speed: the fit against figures worked out by hand, and its fixed point.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <utility>

#include "core/balance/batch_balancer.h"

using namespace gossipd;

namespace {

constexpr BatchBounds bounds{.least = 8, .most = 1024};

}  // namespace

TEST_CASE("with one batch alone a step's time is proportional to it") {
  StepTimeFit fit;
  CHECK_FALSE(fit.observed());
  CHECK(balanced_batch(bounds, fit, 32, 64, 100) == 32);
  for (int i = 0; i < 5; ++i) fit.observe(32, 0.064);
  CHECK(fit.step_time().fixed_s == 0);
  CHECK(fit.step_time().per_sample_s == doctest::Approx(0.002));
  CHECK(fit.samples_per_second() == doctest::Approx(500));
  // T = 64 / (500 + 1500) = 0.032 s, hence 16 of the 64 samples: the share 500 / 2000.
  CHECK(balanced_batch(bounds, fit, 32, 64, 1500) == 16);
}

TEST_CASE("two batches give both parts of the line, and forgetting follows a change of it") {
  StepTimeFit fit;
  const StepTime truth{0.010, 0.001};
  for (const std::uint32_t b : {32u, 64u, 32u, 64u}) fit.observe(b, truth.of(b));
  CHECK(fit.step_time().fixed_s == doctest::Approx(0.010));
  CHECK(fit.step_time().per_sample_s == doctest::Approx(0.001));
  // s = 64/0.074; T = 100 / (s + 1000); b = (T − a)/c
  const double T = 100 / (64 / 0.074 + 1000);
  CHECK(balanced_batch(bounds, fit, 64, 100, 1000) ==
        static_cast<std::uint32_t>(std::round((T - 0.010) / 0.001)));
  // Twice as slow from now on: seen at once, because the line goes through the newest figure.
  fit.observe(64, 2 * truth.of(64));
  CHECK(fit.step_time().of(64) == doctest::Approx(2 * truth.of(64)));
  for (int i = 0; i < 60; ++i)
    fit.observe(i % 2 == 0 ? 32 : 64, 2 * truth.of(i % 2 == 0 ? 32 : 64));
  CHECK(fit.step_time().fixed_s == doctest::Approx(0.020));
  CHECK(fit.step_time().per_sample_s == doctest::Approx(0.002));
}

TEST_CASE("figures that no machine can have do not spoil the fit") {
  StepTimeFit fit;
  fit.observe(32, 0.1);
  fit.observe(64, 0.05);  // faster with more: the speed changed
  CHECK(fit.step_time().fixed_s == 0);
  CHECK(fit.step_time().per_sample_s == doctest::Approx(0.05 / 64));
  fit.observe(64, std::nan(""));
  fit.observe(0, 1);
  fit.observe(64, -1);
  CHECK(fit.step_time().per_sample_s == doctest::Approx(0.05 / 64));
}

TEST_CASE("a change within the dead band is not made, and bounds hold") {
  constexpr BatchBounds bounds{.least = 8, .most = 100};
  StepTimeFit fit;
  fit.observe(40, 0.040);                                  // 1000/s
  CHECK(balanced_batch(bounds, fit, 40, 86, 1000) == 40);  // 43 would be 7.5 % more
  CHECK(balanced_batch(bounds, fit, 40, 90, 1000) == 45);
  CHECK(balanced_batch(bounds, fit, 40, 4000, 1000) == 100);
  CHECK(balanced_batch(bounds, fit, 40, 4, 1000) == 8);
  CHECK(balanced_batch(bounds, fit, 120, 220, 1000) == 100);  // beyond the bounds: no dead band
}

TEST_CASE(
    "nodes of speeds 1:2:4 settle at batches 1:2:4 and equal step times, also with a fixed part") {
  for (const double fixed : {0.0, 0.004}) {
    const std::array<StepTime, 3> truth = {{{fixed, 0.004}, {fixed, 0.002}, {fixed, 0.001}}};
    std::array<StepTimeFit, 3> fits;
    std::array<std::uint32_t, 3> batch = {56, 56, 56};
    for (int round = 0; round < 50; ++round) {
      for (std::size_t i = 0; i < 3; ++i) fits[i].observe(batch[i], truth[i].of(batch[i]));
      std::array<std::uint32_t, 3> next{};
      for (std::size_t i = 0; i < 3; ++i) {
        double others = 0;
        for (std::size_t j = 0; j < 3; ++j)
          if (j != i) others += fits[j].samples_per_second();
        next[i] = balanced_batch(bounds, fits[i], batch[i], 3 * 56, others);
      }
      batch = next;
    }
    CAPTURE(fixed);
    if (fixed == 0) {
      CHECK(batch[0] == 24);
      CHECK(batch[1] == 48);
      CHECK(batch[2] == 96);
    }
    for (std::size_t i = 1; i < 3; ++i)
      CHECK(truth[i].of(batch[i]) == doctest::Approx(truth[0].of(batch[0])).epsilon(0.12));
    CHECK(batch[0] + batch[1] + batch[2] == doctest::Approx(168).epsilon(0.12));
  }
}

namespace {

// Half as fast as the one other member: 2 ms for each of the job's 64 samples.
BatchBalancer::Pace slow_pace(Step step, std::uint32_t batch) {
  return {.step = step, .step_seconds = 0.002 * batch, .batch = batch, .job_batch = 64};
}
constexpr BatchBalancer::Others one_fast{.members = 1, .samples_per_second = 1000};

}  // namespace

TEST_CASE("a batch is kept for some steps before it changes") {
  const BalancePolicy policy{.enabled = true};
  BatchBalancer balancer(policy);
  CHECK(balancer.wanted() == 0);
  CHECK(balancer.share(64) == 1.0);
  for (Step step = 1; step < 1 + balance_steps; ++step)
    CHECK_FALSE(balancer.on_snapshot(slow_pace(step, 64), one_fast));
  CHECK(balancer.on_snapshot(slow_pace(1 + balance_steps, 64), one_fast));
  // 128 samples of both at 500 + 1000 samples/s take 85 ms: 43 at 2 ms each.
  CHECK(balancer.wanted() == 43);
  CHECK(balancer.share(64) == doctest::Approx(43.0 / 64));
  // The trainer has the new batch: its time counts from here.
  CHECK_FALSE(balancer.on_snapshot(slow_pace(20, 43), one_fast));
  CHECK_FALSE(balancer.on_snapshot(slow_pace(20 + balance_steps, 43), one_fast));
  CHECK(balancer.wanted() == 43);
}

TEST_CASE("a step that goes back starts the count anew") {
  const BalancePolicy policy{.enabled = true};
  BatchBalancer balancer(policy);
  CHECK_FALSE(balancer.on_snapshot(slow_pace(100, 64), one_fast));
  CHECK_FALSE(balancer.on_snapshot(slow_pace(3, 64), one_fast));
  CHECK_FALSE(balancer.on_snapshot(slow_pace(3 + balance_steps - 1, 64), one_fast));
  CHECK(balancer.on_snapshot(slow_pace(3 + balance_steps, 64), one_fast));
}

TEST_CASE("without balancing the job's batch stays, whatever the speeds") {
  const BalancePolicy policy;
  BatchBalancer balancer(policy);
  for (Step step = 0; step < 100; ++step)
    CHECK_FALSE(balancer.on_snapshot(slow_pace(step, 64), one_fast));
  CHECK(balancer.wanted() == 0);
  CHECK(balancer.share(64) == 1.0);
}

TEST_CASE("bounds that nobody set follow the job's batch, and never exclude it") {
  const auto bounds_of = [](const BalancePolicy& policy, std::uint32_t job_batch) {
    const BatchBounds found = batch_bounds(policy, job_batch);
    return std::pair(found.least, found.most);
  };
  CHECK(bounds_of({}, 64) == std::pair(8u, 512u));
  CHECK(bounds_of({}, 2) == std::pair(2u, 16u));
  CHECK(bounds_of({}, 4'000'000'000) == std::pair(8u, 4'294'967'295u));
  CHECK(bounds_of({.batch_min = 16, .batch_max = 48}, 64) == std::pair(16u, 48u));
  CHECK(bounds_of({.batch_max = 4}, 64) == std::pair(4u, 4u));
  CHECK(bounds_of({}, 0) == std::pair(1u, 1u));
}

TEST_CASE("two equal machines keep a job's batch that is smaller than the usual least one") {
  const BalancePolicy policy{.enabled = true};
  BatchBalancer balancer(policy);
  constexpr BatchBalancer::Others equal{.members = 1, .samples_per_second = 100};
  for (Step step = 1; step < 50; ++step)
    CHECK_FALSE(balancer.on_snapshot(
        {.step = step, .step_seconds = 0.02, .batch = 2, .job_batch = 2}, equal));
}

TEST_CASE("a machine that was slow for a moment has its batch again two balances later") {
  const BalancePolicy policy{.enabled = true};
  BatchBalancer balancer(policy);
  constexpr BatchBalancer::Others equal{.members = 1, .samples_per_second = 640};
  std::uint32_t batch = 64;
  Step step = 0;
  const auto run = [&](Step steps, double seconds_a_sample) {
    for (const Step end = step + steps; step < end; ++step)
      if (balancer.on_snapshot({.step = step,
                                .step_seconds = seconds_a_sample * batch,
                                .batch = batch,
                                .job_batch = 64},
                               equal))
        batch = balancer.wanted();
  };
  run(20, 1.0 / 640);
  CHECK(batch == 64);
  run(1, 20.0 / 64);  // it stood still for 20 s in one step
  CHECK(batch == 8);
  run(2 * balance_steps, 1.0 / 640);
  CHECK(batch == doctest::Approx(64).epsilon(balance_dead_band));
}

TEST_CASE("the largest share that is believed is eight, or the largest batch over the job's") {
  const BalancePolicy policy{.batch_max = 1024};
  const BatchBalancer balancer(policy);
  CHECK(balancer.share_max(64) == 16);
  CHECK(balancer.share_max(1024) == 8);
  CHECK(balancer.share_max(0) == 8);
}
