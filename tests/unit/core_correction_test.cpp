// Corrections of what comes in: each formula against its definition, followed step by step.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "core/base/mean_square.h"
#include "core/base/random.h"
#include "core/correction/curvature.h"
#include "core/correction/loss_trust.h"
#include "core/correction/lstm.h"

using namespace gossipd;

TEST_CASE("the future position moves what was received by the difference of the two ages") {
  const FuturePosition position = future_position(0.5, 0.25, 12, 8);
  CHECK(position.gain == 0.25);
  CHECK(position.steps == doctest::Approx(2));
  CHECK(future_position(1.0, 0.25, 12, 20).steps == doctest::Approx(-8));
}

TEST_CASE("the damped displacement solves dD/dn = u - k|u|D") {
  for (const double u : {0.01, -0.02, 1e-5}) {
    for (const double k : {0.5, 5.0, 80.0}) {
      const double n = 37;
      double displacement = 0;
      constexpr int parts = 200'000;
      for (int i = 0; i < parts; ++i)
        displacement += n / parts * (u - k * std::abs(u) * displacement);
      CHECK(damped_displacement(n * u, k) == doctest::Approx(displacement).epsilon(1e-4));
      CHECK(std::abs(damped_displacement(1e9 * u, k)) <= 1 / k + 1e-12);
      CHECK(damped_displacement(n * u, k) * u > 0);
    }
  }
  CHECK(damped_displacement(0.25, 0) == 0.25);
  CHECK(damped_displacement(-0.25, 1e-12) == doctest::Approx(-0.25));
}

TEST_CASE(
    "damped corrections are weighed by the gain, and without curvature they are the plain ones") {
  const std::array<float, 3> drift = {0.01f, -0.5f, 0.0f};
  for (const double own_age : {8.0, 20.0}) {
    const FuturePosition position = future_position(1.0, 0.25, 12, own_age);
    std::array<float, 3> plain = {1, 2, 3}, damped = {1, 2, 3};
    (void)add_damped(plain, drift, position, 0);
    const double squared = add_damped(damped, drift, position, 2.0);
    double expected = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const double u = static_cast<double>(drift[i]);
      CHECK(plain[i] == doctest::Approx(static_cast<double>(i + 1) + 0.25 * (12 - own_age) * u));
      const double added = 0.25 * damped_displacement((12 - own_age) * u, 2.0);
      CHECK(damped[i] == doctest::Approx(static_cast<double>(i + 1) + added));
      expected += added * added;
    }
    CHECK(squared == doctest::Approx(expected));
  }
  CHECK(mean_square(std::array<float, 2>{3, 4}) == doctest::Approx(12.5));
  CHECK(adapt_mean_square(0, 4) == 4);
  CHECK(adapt_mean_square(4, 2) == doctest::Approx(0.95 * 4 + 0.05 * 2));
}

TEST_CASE("Holt's forecast follows a line, also with unequal spacing") {
  const auto forecaster = make_forecaster(LossTrust::holt);
  CHECK(forecaster->forecast(10) == 0);
  Step step = 0;
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    step += 1 + random.below(9);
    forecaster->observe(step, 3.0 - 0.001 * static_cast<double>(step));
  }
  CHECK(forecaster->forecast(100) ==
        doctest::Approx(3.0 - 0.001 * static_cast<double>(step + 100)).epsilon(0.01));
  HoltForecaster by_hand;
  LossForecaster& base = by_hand;
  base.observe(10, 2.0);
  base.observe(12, 1.0);  // level 0.5·1 + 0.5·2 = 1.5, slope 0.2·(−0.5/2) = −0.05
  CHECK(base.forecast(4) == doctest::Approx(1.3));
  base.observe(12, 50.0);  // not a later step
  CHECK(base.forecast(4) == doctest::Approx(1.3));
  CHECK(base.forecast(1e9) == doctest::Approx(0.5));  // at most a factor of 2 off the last loss
}

TEST_CASE("the LSTM's gradient is the slope of its loss, by finite differences") {
  Lstm network(3, 5);
  Random random(7);
  std::vector<std::vector<double>> inputs;
  for (int t = 0; t < 5; ++t)
    inputs.push_back({random.uniform() - 0.5, random.uniform(), random.uniform() - 0.5});
  Lstm::State start;
  for (std::size_t j = 0; j < lstm_hidden; ++j)
    start.h[j] = random.uniform() - 0.5, start.c[j] = random.uniform() - 0.5;
  const std::vector<double> gradient = network.gradient(start, inputs, 0.7);
  REQUIRE(gradient.size() == network.weights().size());
  constexpr double h = 1e-5;
  double largest = 0;
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    const double weight = network.weights()[j];
    network.weights()[j] = weight + h;
    const double above = network.loss(start, inputs, 0.7);
    network.weights()[j] = weight - h;
    const double below = network.loss(start, inputs, 0.7);
    network.weights()[j] = weight;
    CAPTURE(j);
    CHECK(gradient[j] == doctest::Approx((above - below) / (2 * h)).epsilon(1e-6));
    largest = std::max(largest, std::abs(gradient[j]));
  }
  CHECK(largest > 1e-3);
}

TEST_CASE(
    "the LSTM learns on line what depends on the last two inputs, the same from the same seed") {
  Lstm network(1, 9), twin(1, 9);
  double early = 0, late = 0, before = 0;
  Random random(11);
  for (int t = 0; t < 6000; ++t) {
    const double x = random.uniform() < 0.5 ? -1 : 1;
    const double wanted = 0.5 * x * before;  // not linear in either
    before = x;
    const double y = network.train({x}, wanted);
    CHECK(y == twin.train({x}, wanted));
    (t < 500 ? early : late) += t < 500 || t >= 5500 ? (y - wanted) * (y - wanted) : 0;
  }
  CHECK(early / 500 > 0.1);
  CHECK(late / 500 < 0.02);
}

TEST_CASE("the LSTM forecasts a loss that decays, and both predictors refuse nonsense") {
  for (const LossTrust kind : {LossTrust::holt, LossTrust::lstm}) {
    const auto forecaster = make_forecaster(kind);
    double loss = 2;
    for (Step step = 10; step <= 4000; step += 10) forecaster->observe(step, loss *= 0.99);
    CHECK(forecaster->forecast(10) == doctest::Approx(loss * 0.99).epsilon(0.01));
    forecaster->observe(5000, std::nan(""));
    forecaster->observe(5000, -1);
    CHECK(forecaster->forecast(10) == doctest::Approx(loss * 0.99).epsilon(0.01));
  }
  CHECK(make_forecaster(LossTrust::off) == nullptr);
}

TEST_CASE("trust is the ratio of the losses, clamped, and 1 where one is not known") {
  CHECK(loss_trust(1.0, 0.8, 2) == doctest::Approx(1.25));
  CHECK(loss_trust(1.0, 0.1, 2) == 2);
  CHECK(loss_trust(0.1, 1.0, 2) == 0.5);
  CHECK(loss_trust(0, 1.0, 2) == 1);
  CHECK(loss_trust(1.0, 0, 2) == 1);
}
