// The minibatch from the speed: the fit against stats worked out by hand, and its fixed point.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "core/balance/batch_balancer.h"

using namespace gossipd;

TEST_CASE("with one batch alone a step's time is proportional to it") {
  const BalancePolicy policy;
  BatchBalancer balancer(policy);
  CHECK_FALSE(balancer.observed());
  CHECK(balancer.batch(32, 64, 100) == 32);
  for (int i = 0; i < 5; ++i) balancer.observe(32, 0.064);
  CHECK(balancer.step_time().fixed_s == 0);
  CHECK(balancer.step_time().per_sample_s == doctest::Approx(0.002));
  CHECK(balancer.samples_per_second() == doctest::Approx(500));
  // T = 64 / (500 + 1500) = 0.032 s, hence 16 of the 64 samples: the share 500 / 2000.
  CHECK(balancer.batch(32, 64, 1500) == 16);
}

TEST_CASE("two batches give both parts of the line, and forgetting follows a change of it") {
  const BalancePolicy policy;
  BatchBalancer balancer(policy);
  const StepTime truth{0.010, 0.001};
  for (const std::uint32_t b : {32u, 64u, 32u, 64u}) balancer.observe(b, truth.of(b));
  CHECK(balancer.step_time().fixed_s == doctest::Approx(0.010));
  CHECK(balancer.step_time().per_sample_s == doctest::Approx(0.001));
  // s = 64/0.074; T = 100 / (s + 1000); b = (T − a)/c
  const double T = 100 / (64 / 0.074 + 1000);
  CHECK(balancer.batch(64, 100, 1000) ==
        static_cast<std::uint32_t>(std::round((T - 0.010) / 0.001)));
  // Twice as slow from now on: seen at once, because the line goes through the newest figure.
  balancer.observe(64, 2 * truth.of(64));
  CHECK(balancer.step_time().of(64) == doctest::Approx(2 * truth.of(64)));
  for (int i = 0; i < 60; ++i)
    balancer.observe(i % 2 == 0 ? 32 : 64, 2 * truth.of(i % 2 == 0 ? 32 : 64));
  CHECK(balancer.step_time().fixed_s == doctest::Approx(0.020));
  CHECK(balancer.step_time().per_sample_s == doctest::Approx(0.002));
}

TEST_CASE("figures that no machine can have do not spoil the fit") {
  const BalancePolicy policy;
  BatchBalancer balancer(policy);
  balancer.observe(32, 0.1);
  balancer.observe(64, 0.05);  // faster with more: the speed changed
  CHECK(balancer.step_time().fixed_s == 0);
  CHECK(balancer.step_time().per_sample_s == doctest::Approx(0.05 / 64));
  balancer.observe(64, std::nan(""));
  balancer.observe(0, 1);
  balancer.observe(64, -1);
  CHECK(balancer.step_time().per_sample_s == doctest::Approx(0.05 / 64));
}

TEST_CASE("a change within the dead band is not made, and bounds hold") {
  BalancePolicy policy;
  policy.batch_min = 8;
  policy.batch_max = 100;
  BatchBalancer balancer(policy);
  balancer.observe(40, 0.040);                // 1000/s
  CHECK(balancer.batch(40, 86, 1000) == 40);  // 43 would be 7.5 % more
  CHECK(balancer.batch(40, 90, 1000) == 45);
  CHECK(balancer.batch(40, 4000, 1000) == 100);
  CHECK(balancer.batch(40, 4, 1000) == 8);
  CHECK(balancer.batch(120, 220, 1000) == 100);  // beyond the bounds: no dead band
}

TEST_CASE(
    "nodes of speeds 1:2:4 settle at batches 1:2:4 and equal step times, also with a fixed part") {
  for (const double fixed : {0.0, 0.004}) {
    const BalancePolicy policy;
    const std::array<StepTime, 3> truth = {{{fixed, 0.004}, {fixed, 0.002}, {fixed, 0.001}}};
    std::array<BatchBalancer, 3> balancers = {BatchBalancer(policy), BatchBalancer(policy),
                                              BatchBalancer(policy)};
    std::array<std::uint32_t, 3> batch = {56, 56, 56};
    for (int round = 0; round < 50; ++round) {
      for (std::size_t i = 0; i < 3; ++i) balancers[i].observe(batch[i], truth[i].of(batch[i]));
      std::array<std::uint32_t, 3> next{};
      for (std::size_t i = 0; i < 3; ++i) {
        double others = 0;
        for (std::size_t j = 0; j < 3; ++j)
          if (j != i) others += balancers[j].samples_per_second();
        next[i] = balancers[i].batch(batch[i], 3 * 56, others);
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
