// The final exchange: models that agree, whatever happens meanwhile.
#include <cmath>
#include <cstdio>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t floats = 20'000;
const double bound = ExchangePolicy{}.spread_bound;

// Nodes of one model, each of which walks its own way while it trains.
struct Walkers {
  Walkers(std::size_t count, std::uint32_t links)
      : cluster(schema_of({18'000, 1'900, 100}), [this](std::size_t, std::span<float> x, Step) {
          for (float& value : x) value += static_cast<float>(0.01 * (noise.uniform() - 0.5));
        }) {
    for (std::size_t i = 0; i < count; ++i) {
      NodeOptions options;
      if (i == 0) options.start = random_model(floats, 5);
      else options.seeds = {0};
      options.budget = 32 * 200 * count;
      options.membership.links = links;
      cluster.add(options);
    }
  }
  // The largest distance of a living model to the mean, over the mean's norm.
  [[nodiscard]] double spread() const {
    double square = 0;
    for (const double x : cluster.mean()) square += x * x;
    return cluster.spread() / std::sqrt(square / floats);
  }

  Random noise{1};
  VirtualCluster cluster;
};

}  // namespace

TEST_CASE("the final exchange brings the models together and keeps their mean") {
  for (const std::uint32_t links : {2u, 4u}) {
    CAPTURE(links);
    Walkers w(12, links);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
    const double before = w.spread();
    const auto mean = w.cluster.mean();
    const std::uint64_t bytes = w.cluster.bytes();
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 50s));  // the cap would be 60
    double moved = 0, square = 0;
    const auto now = w.cluster.mean();
    for (std::size_t p = 0; p < floats; ++p) moved += std::pow(now[p] - mean[p], 2), square += mean[p] * mean[p];
    std::printf("12 nodes, %u links: %.4f apart before the final exchange, %.5f after it; the mean moved by %.5f, %.1f models were sent\n", links, before,
                w.spread(), std::sqrt(moved / square), static_cast<double>(w.cluster.bytes() - bytes) / (4.0 * floats));
    CHECK(before > 0.02);
    CHECK(w.spread() < bound);
    CHECK(std::sqrt(moved / square) < 0.1 * before);
    for (std::size_t i = 0; i < w.cluster.size(); ++i) CHECK(w.cluster.view(i).spread < bound);
  }
}

TEST_CASE("a node dies in the final exchange: the others agree, and so does it when it is back") {
  for (const auto death : {VirtualCluster::Death::killed, VirtualCluster::Death::power_lost}) {
    Walkers w(8, 3);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
    w.cluster.kill(3, death);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 40s));
    CHECK(w.spread() < bound);
    w.cluster.restart(3);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 40s));
    CHECK(w.cluster.run_until([&] { return w.spread() < bound; }, 120s));
  }
}

TEST_CASE("a node stands still while the others finish: they do not wait for the cap, and it agrees with them afterwards") {
  Walkers w(8, 3);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 100; }, 60s));
  w.cluster.freeze(5, 60s);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished, 5); }, 50s));
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 80s));
  CHECK(w.cluster.run_until([&] { return w.spread() < bound; }, 120s));
}

TEST_CASE("two halves that finished apart agree when they meet again") {
  Walkers w(6, 5);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(5) > 50; }, 60s));
  for (std::size_t a = 0; a < 6; ++a)
    for (std::size_t b = 0; b < 6; ++b)
      if ((a < 3) != (b < 3)) w.cluster.network().way(a, b).held = true;
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 120s));
  w.cluster.run_for(5s);
  CHECK(w.spread() > 5 * bound);
  w.cluster.network().reset_all();
  w.cluster.network().heal();
  REQUIRE(w.cluster.run_until([&] { return w.spread() < bound; }, 300s));
  w.cluster.run_for(60s);
  CHECK(w.spread() < bound);
}

TEST_CASE("after an extension of the budget the nodes train on and agree again") {
  Walkers w(5, 3);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 60s));
  CHECK_FALSE(w.cluster.node(2).extend_budget(32 * 100 * 5, w.cluster.now()));
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::training); }, 30s));
  const Step steps = w.cluster.steps(3);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 60s));
  CHECK(w.cluster.steps(3) > steps + 50);
  CHECK(w.spread() < bound);
}
