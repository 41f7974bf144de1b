// The reference rows' formulas against brute force and numbers worked out by hand.
#include <doctest/doctest.h>

#include <limits>
#include <tuple>

#include "tests/unit/lab_test_support.h"
#include "tools/lab/references/batch_sizing.h"
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/local_training.h"

using namespace gossipd;
using namespace gossipd::lab;

TEST_CASE(
    "batch-norm statistics are taken out of a model and put into another, and nothing else is") {
  const Schema schema = Schema::build({{"w", {2}, 0, 2, SegmentKind::parameter},
                                       {"mean", {2}, 2, 2, SegmentKind::statistic},
                                       {"v", {1}, 4, 1, SegmentKind::parameter},
                                       {"variance", {2}, 5, 2, SegmentKind::statistic},
                                       {"batches", {1}, 7, 1, SegmentKind::local}})
                            .value();
  const Vector from = {1, 2, 3, 4, 5, 6, 7, 8};
  const Vector statistics = statistics_of(schema, from);
  CHECK(statistics == Vector{3, 4, 6, 7});
  Vector into(8, 0.0f);
  set_statistics(schema, statistics, into);
  CHECK(into == Vector{0, 0, 3, 4, 0, 6, 7, 0});
}

TEST_CASE("SMEGA2's look-ahead for a horizon of N is the published formula") {
  for (std::uint64_t n = 1; n <= 9; ++n)
    for (std::uint64_t s = 0; s < n; ++s) {
      const RollOut ahead = smega2_roll_out(n, s, 0.9, static_cast<double>(n));
      CHECK(ahead.velocity ==
            doctest::Approx(static_cast<double>(n) + static_cast<double>(s) * (0.9 - 1)));
      CHECK(ahead.gathered == doctest::Approx(static_cast<double>(s) / static_cast<double>(n)));
    }
}

TEST_CASE("SMEGA2's look-ahead is the server's own path when all new gradients are zero") {
  const double beta = 0.8, eta = 0.1;
  for (std::uint64_t n = 1; n <= 6; ++n)
    for (std::uint64_t s = 0; s < n; ++s)
      for (std::uint64_t horizon = 0; horizon <= 3 * n; ++horizon) {
        double x = 1.5, v = -0.7, g = s == 0 ? 0.0 : 2.3;  // G is zero when the counter is
        const RollOut ahead = smega2_roll_out(n, s, beta, static_cast<double>(horizon));
        const double predicted = x - eta * beta * (ahead.velocity * v + ahead.gathered * g);
        std::uint64_t counter = s;
        for (std::uint64_t k = 0; k < horizon; ++k) {
          counter = (counter + 1) % n;
          x -= eta * beta * v;
          if (counter == 0) {
            v = beta * v + g / static_cast<double>(n);
            g = 0;
          }
        }
        CHECK(predicted == doctest::Approx(x));
      }
}

TEST_CASE("DC-ASGD adds lambda g g (x - x_then)") {
  std::vector<float> g = {2, -1, 0}, x = {1, 3, 5}, then = {0.5f, 4, 0};
  delay_compensate(0.1f, g, x, then);
  CHECK(g[0] == doctest::Approx(2 + 0.1 * 4 * 0.5));
  CHECK(g[1] == doctest::Approx(-1 + 0.1 * 1 * -1));
  CHECK(g[2] == 0.0f);
}

TEST_CASE("adaptive DC-ASGD divides lambda by the root of the gradients' mean square") {
  std::vector<float> g = {2}, x = {1}, then = {0.5f}, mean_square = {3};
  delay_compensate_adaptive(2.0f, 0.95f, mean_square, g, x, then);
  CHECK(mean_square[0] == doctest::Approx(0.95 * 3 + 0.05 * 4));
  CHECK(g[0] == doctest::Approx(2 + 2 / std::sqrt(3.05) * 4 * 0.5).epsilon(1e-5));
}

TEST_CASE(
    "LARS gives a tensor's step trust times the tensor's norm, whatever the gradient's size") {
  const std::vector<float> x = {3, 0, -4};  // norm 5
  for (const float size : {1e-3f, 1.0f, 1e3f}) {
    std::vector<float> g = {2 * size, -1 * size, 2 * size};  // norm 3·size
    lars_scale(0.01, 0, x, g);
    CHECK(g[0] == doctest::Approx(0.01 * 5 / 3 * 2));
    CHECK(g[1] == doctest::Approx(0.01 * 5 / 3 * -1));
    CHECK(g[2] == doctest::Approx(0.01 * 5 / 3 * 2));
  }
}

TEST_CASE("LARS counts weight decay in the step and, by its norm, in the rate") {
  std::vector<float> g = {2, -1, 2};
  lars_scale(0.01, 0.2, std::vector<float>{3, 0, -4}, g);
  const double rate = 0.01 * 5 / (3 + 0.2 * 5);
  CHECK(g[0] == doctest::Approx(rate * (2 + 0.2 * 3)));
  CHECK(g[1] == doctest::Approx(rate * -1));
  CHECK(g[2] == doctest::Approx(rate * (2 - 0.2 * 4)));
}

TEST_CASE("LARS leaves a tensor of zeros at the plain rate, or it would never move") {
  std::vector<float> g = {2, -1};
  lars_scale(0.01, 0.2, std::vector<float>{0, 0}, g);
  CHECK(g == std::vector<float>{2, -1});
}

TEST_CASE("an elastic exchange conserves the sum of worker and centre and pulls both by the same") {
  std::vector<float> worker = {1, -2}, centre = {3, 2}, d(2);
  elastic_difference(0.25f, worker, centre, d);
  CHECK(d[0] == doctest::Approx(-0.5));
  CHECK(d[1] == doctest::Approx(-1.0));
  for (std::size_t p = 0; p < 2; ++p)
    CHECK((worker[p] - d[p]) + (centre[p] + d[p]) == doctest::Approx(worker[p] + centre[p]));
}

TEST_CASE("the quadratic rule lengthens rounds as the learning rate falls") {
  CHECK(quadratic_period(4, 0.2, 0.1) == 4);
  CHECK(quadratic_period(4, 0.2, 0.05) == 16);
  CHECK(quadratic_period(4, 0.2, 0.03) == 44);
  CHECK(quadratic_period(4, 0.2, 0.0) == std::uint64_t{1} << 32);
}

TEST_CASE("a mix is the weighted mean of two models, and of equal models the same") {
  const std::vector<float> x = {1, -7}, other = {3, 1};
  const std::tuple<float, float, float> expected[] = {
      {0.0f, 1, -7}, {0.25f, 1.5f, -5}, {0.5f, 2, -3}, {1.0f, 3, 1}};
  for (const auto& [weight, first, second] : expected) {
    std::vector<float> mixed = x;
    mix(mixed, other, weight);
    CHECK(mixed == std::vector<float>{first, second});
    mix(mixed = x, x, weight);
    CHECK(mixed == x);
  }
}

TEST_CASE("random pairs are pairs, the same for whoever asks, and differ from round to round") {
  for (std::size_t nodes = 1; nodes <= 9; ++nodes) {
    std::size_t alone = 0;
    const auto partner = random_pairs(nodes, 5, 2);
    for (std::size_t i = 0; i < nodes; ++i) {
      CHECK(partner[partner[i]] == i);
      alone += partner[i] == i;
    }
    CHECK(alone == nodes % 2);
    CHECK(partner == random_pairs(nodes, 5, 2));
  }
  CHECK(random_pairs(8, 5, 2) != random_pairs(8, 5, 3));
}

TEST_CASE("a step time fit finds base and slope, and follows a machine that slows down") {
  StepTimeFit fit;
  for (int k = 0; k < 40; ++k) fit.observe(16 + 8 * (k % 3), 0.01 + 0.002 * (16 + 8 * (k % 3)));
  CHECK(fit.base_s() == doctest::Approx(0.01));
  CHECK(fit.per_sample_s() == doctest::Approx(0.002));
  for (int k = 0; k < 60; ++k) fit.observe(16 + 8 * (k % 3), 0.02 + 0.004 * (16 + 8 * (k % 3)));
  CHECK(fit.per_sample_s() == doctest::Approx(0.004).epsilon(0.02));
}

TEST_CASE("balanced batches keep the global batch and make step times equal") {
  std::vector<StepTimeFit> fits(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const double speed = std::pow(2.0, static_cast<double>(i));
    for (int k = 0; k < 40; ++k)
      fits[i].observe(16 + 8 * (k % 3), (0.002 + 0.001 * (16 + 8 * (k % 3))) / speed);
  }
  const auto batches = balanced_batches(fits, 96, 1, 1000);
  CHECK(batches[0] + batches[1] + batches[2] == 96);
  CHECK((2 + batches[0]) == doctest::Approx((2.0 + batches[1]) / 2).epsilon(0.06));
  CHECK((2 + batches[0]) == doctest::Approx((2.0 + batches[2]) / 4).epsilon(0.06));
}

TEST_CASE("a codec's error is carried by later messages") {
  Random random(11);
  std::vector<float> x(700), initial(700);
  for (float& value : x) value = static_cast<float>(random.uniform() - 0.5);
  for (const char* name : {"fp32", "int8", "int4", "top_k:64"}) {
    PairReplicas replicas(ModelCodec(*parse_codec(name)), initial);
    PairReplicas::Message message;
    for (int k = 0; k < 60; ++k) message = replicas.publish(0, 1, x);
    double worst = 0;
    for (std::size_t p = 0; p < x.size(); ++p)
      worst = std::max(worst, std::abs(double{x[p]} - (*message.decoded)[p]));
    INFO(name);
    CHECK(worst < 0.02);
  }
}

TEST_CASE("a gradient longer than clip_norm is scaled to it, another one stays to the bit") {
  std::vector<float> g = {3, -4}, before = g;
  clip_to_norm(g, 0);
  CHECK(g == before);
  clip_to_norm(g, 5);
  CHECK(g == before);
  clip_to_norm(g, 1);
  CHECK(g[0] == doctest::Approx(0.6));
  CHECK(g[1] == doctest::Approx(-0.8));
  std::vector<float> wild = {1e30f, std::numeric_limits<float>::infinity()}, kept = wild;
  clip_to_norm(wild, 1);
  CHECK(wild == kept);
}

TEST_CASE("DGC's share falls from a quarter to its own over the warm-up, by one factor") {
  CHECK(dgc_share(0.01, 0) == doctest::Approx(0.25));
  CHECK(dgc_share(0.01, 0.5) == doctest::Approx(0.05));
  CHECK(dgc_share(0.01, 1) == doctest::Approx(0.01));
  CHECK(dgc_share(0.5, 0) == 0.5);
}

TEST_CASE(
    "two models that mix by a sparse code meet in their mean if their replicas contract too") {
  Random random(5);
  const std::size_t floats = 2048;
  const Vector initial(floats, 0.0f);
  for (const bool contract : {true, false}) {
    CAPTURE(contract);
    PairReplicas replicas(ModelCodec(*parse_codec("top_k:16")), initial);
    Vector x(floats), y(floats), mean(floats);
    for (std::size_t p = 0; p < floats; ++p) {
      x[p] = static_cast<float>(random.uniform() - 0.5);
      y[p] = static_cast<float>(random.uniform() - 0.5);
      mean[p] = 0.5f * (x[p] + y[p]);
    }
    for (int round = 0; round < 400; ++round) {
      const auto of_x = replicas.publish(0, 1, x), of_y = replicas.publish(1, 0, y);
      for (std::size_t p = 0; p < floats; ++p) {
        const float step = 0.5f * ((*of_y.decoded)[p] - (*of_x.decoded)[p]);
        x[p] += step, y[p] -= step;
      }
      if (contract) replicas.contract(0, 1, 0.5f);
    }
    double apart = 0, moved = 0;
    for (std::size_t p = 0; p < floats; ++p) {
      apart = std::max(apart, std::abs(double{x[p]} - y[p]));
      moved = std::max(moved, std::abs(0.5 * (double{x[p]} + y[p]) - mean[p]));
    }
    CHECK(moved < 1e-3 * std::max(1.0, apart));
    CHECK((apart < 0.05) == contract);
  }
}
