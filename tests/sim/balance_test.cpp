// Unlike machines: the minibatch follows the speed, through the real membership and exchange.
#include <tuple>
#include <utility>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

// Speeds 1:2:4, 24 samples a step each to begin with.
void add_three(VirtualCluster& cluster, const Schema& schema, BalanceWeight weight,
               bool steps_outside = false) {
  const Duration per_sample[] = {2ms, 1ms, 500us};
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options = with_model(schema, i);
    options.batch = 56;
    options.step_time = Duration{};
    options.time_per_sample = per_sample[i];
    options.steps_outside = steps_outside;
    options.balance.enabled = true;
    options.balance.weight = weight;
    options.exchange.outer_momentum = 0;  // no movement but the test's own
    options.membership.tick = 200ms;
    cluster.add(options);
  }
}

}  // namespace

TEST_CASE("speeds 1:2:4 get batches 1:2:4, and steps that take equally long") {
  const Schema schema = schema_of({300});
  VirtualCluster cluster(schema);
  add_three(cluster, schema, BalanceWeight::batch);
  cluster.run_for(20s);
  const double batch[] = {double(cluster.view(0).batch), double(cluster.view(1).batch),
                          double(cluster.view(2).batch)};
  CHECK(batch[0] == doctest::Approx(24).epsilon(0.1));
  CHECK(batch[1] == doctest::Approx(48).epsilon(0.1));
  CHECK(batch[2] == doctest::Approx(96).epsilon(0.1));
  CHECK(batch[0] + batch[1] + batch[2] == doctest::Approx(3 * 56).epsilon(0.1));
  for (const std::size_t i : {1u, 2u})
    CHECK(cluster.view(i).step_seconds ==
          doctest::Approx(cluster.view(0).step_seconds).epsilon(0.15));
  // All nodes count true samples.
  for (std::size_t i = 0; i < 3; ++i) CHECK(cluster.view(i).own_samples <= cluster.samples(i));
  CHECK(cluster.samples(2) > 3 * cluster.samples(0));
}

TEST_CASE("the batch of a node that becomes slower follows within 20 of its steps") {
  const Schema schema = schema_of({300});
  VirtualCluster cluster(schema);
  add_three(cluster, schema, BalanceWeight::batch);
  cluster.run_for(20s);
  const double before = cluster.view(2).batch;
  const Step step = cluster.steps(2);
  cluster.set_speed(2, 2ms);  // a quarter of its speed: as fast as the slowest
  cluster.run_until([&] { return cluster.steps(2) >= step + 20; }, 60s);
  CHECK(cluster.view(2).batch < 0.6 * before);
}

TEST_CASE("whose steps another process makes keeps its batch, rate and weight, balanced or not") {
  struct Wanted final : Watcher {
    std::uint32_t batch = 0;
    double rate = 1;
    void before_update(std::size_t, const Update& update, std::span<const float>) override {
      batch = std::max(batch, update.batch);
      rate = std::max(rate, update.rate_scale);
    }
  };
  const Schema schema = schema_of({300});
  Wanted wanted;
  VirtualCluster cluster(schema);
  cluster.watch(wanted);
  add_three(cluster, schema, BalanceWeight::rate, true);
  cluster.run_for(20s);
  CHECK(cluster.steps(2) > 3 * cluster.steps(0));
  CHECK(wanted.batch == 0);
  CHECK(wanted.rate == 1);
}

TEST_CASE("weight by batch: a node counts by its batch; weight by rate: its learning rate does") {
  struct Rates final : Watcher {
    double last[3] = {};
    void before_update(std::size_t node, const Update& update, std::span<const float>) override {
      last[node] = update.rate_scale;
    }
  };
  const Schema schema = schema_of({300});
  // Batches are 1:2:4, together 168.
  const std::tuple<BalanceWeight, double, double> expected[] = {
      {BalanceWeight::none, 1.0 / 3, 1},
      {BalanceWeight::batch, 4.0 / 7, 1},
      {BalanceWeight::rate, 1.0 / 3, 96.0 / 56}};
  for (const auto& [weight, share, rate] : expected) {
    CAPTURE(share);
    Rates rates;
    bool push = false;
    constexpr float pushed = 0.01f;
    VirtualCluster cluster(schema, [&](std::size_t node, std::span<float> x, Step) {
      if (node == 2 && std::exchange(push, false))
        for (float& value : x) value += pushed;
    });
    cluster.watch(rates);
    add_three(cluster, schema, weight);
    cluster.run_for(40s);
    CHECK(cluster.consensus_distance() < 0.02);
    CHECK(rates.last[2] == doctest::Approx(rate).epsilon(0.1));
    const auto before = cluster.mean();
    push = true;
    cluster.run_for(40s);
    CHECK_FALSE(push);
    const auto after = cluster.mean();
    double moved = 0;
    for (std::size_t i = 0; i < after.size(); ++i) moved += after[i] - before[i];
    CHECK(moved / static_cast<double>(after.size()) / pushed ==
          doctest::Approx(share).epsilon(0.1));
  }
}
