// The final exchange: one model everywhere, whatever happens to the node whose model it is.
#include <cmath>
#include <cstdio>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t floats = 20'000;
const double bound = ExchangePolicy{}.spread_bound;

double distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t p = 0; p < a.size(); ++p) {
    difference += std::pow(static_cast<double>(a[p]) - static_cast<double>(b[p]), 2);
    norm += std::pow(static_cast<double>(b[p]), 2);
  }
  return std::sqrt(difference / norm);
}

// Nodes of one model, each of which walks its own way while it trains.
struct Walkers {
  explicit Walkers(std::size_t count, std::uint32_t links, std::uint64_t seed = 1)
      : noise(seed), cluster(schema_of({18'000, 1'900, 100}), [this](std::size_t, std::span<float> x, Step) {
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
  bool all(Phase phase) {
    for (std::size_t i = 0; i < cluster.size(); ++i)
      if (cluster.alive(i) && cluster.node(i).phase() != phase) return false;
    return true;
  }
  [[nodiscard]] std::size_t lowest(std::optional<std::size_t> but = {}) const {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < cluster.size(); ++i)
      if (i != but && (!found || raw(cluster.id(i)) < raw(cluster.id(*found)))) found = i;
    return *found;
  }
  bool any_finished() {
    for (std::size_t i = 0; i < cluster.size(); ++i)
      if (cluster.alive(i) && cluster.node(i).phase() == Phase::finished) return true;
    return false;
  }
  // Of a living node to that one's, the largest.
  [[nodiscard]] double furthest_from(std::size_t i) {
    double most = 0;
    for (std::size_t k = 0; k < cluster.size(); ++k)
      if (cluster.alive(k)) most = std::max(most, distance(cluster.model(k), cluster.model(i)));
    return most;
  }
  [[nodiscard]] double relative_spread() {
    double square = 0;
    for (const double x : cluster.mean()) square += x * x;
    return cluster.spread() / std::sqrt(square / floats);
  }

  Random noise;
  VirtualCluster cluster;
};

std::vector<float> copy_of(std::span<const float> model) { return {model.begin(), model.end()}; }

std::uint64_t turns(const VirtualCluster& cluster) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < cluster.size(); ++i)
    for (const LinkView& link : cluster.view(i).links) sum += link.counters.turns_spoken;
  return sum;
}

}  // namespace

TEST_CASE("at the end the model of the lowest id is everywhere, is near the mean, and nothing more is said") {
  for (const std::uint32_t links : {2u, 4u}) {
    CAPTURE(links);
    Walkers w(12, links);
    REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finishing) || w.any_finished(); }, 60s));
    const double before = w.relative_spread();
    const std::uint64_t bytes = w.cluster.bytes();
    const Instant began = w.cluster.now();
    REQUIRE(w.cluster.run_until([&] { return w.any_finished(); }, 30s));
    const std::size_t root = w.lowest();
    CHECK(w.cluster.node(root).phase() == Phase::finished);
    const std::vector<float> model = copy_of(w.cluster.model(root));
    const auto mean = w.cluster.mean();
    CHECK(distance(model, std::vector<float>(mean.begin(), mean.end())) < 0.05);
    REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 30s));
    const double models = static_cast<double>(w.cluster.bytes() - bytes) / (4.0 * floats);
    std::printf("12 nodes, %u links: %.4f apart before the final exchange, %.5f from the final model after it, %.2f s, %.2f models sent\n", links, before,
                w.furthest_from(root), seconds(w.cluster.now() - began), models);
    CHECK(before > 0.02);
    CHECK(w.furthest_from(root) < bound);
    CHECK(models < 8);
    for (std::size_t i = 0; i < w.cluster.size(); ++i) CHECK(w.cluster.view(i).spread < bound);
    w.cluster.run_for(5s);
    const std::uint64_t said = turns(w.cluster);
    w.cluster.run_for(120s);
    CHECK(turns(w.cluster) == said);
    CHECK(distance(w.cluster.model(root), model) < 1e-5);
  }
}

TEST_CASE("who has the final model dies before anybody has taken it: it is another one's") {
  for (const auto death : {VirtualCluster::Death::killed, VirtualCluster::Death::power_lost}) {
    Walkers w(8, 3);
    REQUIRE(w.cluster.run_until([&] { return w.any_finished(); }, 60s));
    const std::size_t root = w.lowest();
    REQUIRE(w.cluster.node(root).phase() == Phase::finished);
    w.cluster.kill(root, death);
    REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 40s));  // the cap would be 60
    const std::size_t next = w.lowest(root);
    CHECK(w.furthest_from(next) < bound);
    w.cluster.restart(root);
    REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 40s));
    CHECK(w.furthest_from(next) < 2 * bound);  // of the one that it was taken from
  }
}

TEST_CASE("who would have the final model stands still: the others go on without, and it takes theirs afterwards") {
  Walkers w(8, 3);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 100; }, 60s));
  const std::size_t root = w.lowest();
  w.cluster.freeze(root, 60s);
  const auto others_finished = [&] {
    for (std::size_t i = 0; i < w.cluster.size(); ++i)
      if (i != root && w.cluster.node(i).phase() != Phase::finished) return false;
    return true;
  };
  REQUIRE(w.cluster.run_until(others_finished, 50s));
  const std::size_t next = w.lowest(root);
  const std::vector<float> model = copy_of(w.cluster.model(next));
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 80s));
  CHECK(w.furthest_from(next) < bound);
  CHECK(distance(w.cluster.model(next), model) < bound);  // but for an exchange that had been under way
}

TEST_CASE("two halves that finished apart average their final models when they meet again") {
  Walkers w(6, 5);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(5) > 50; }, 60s));
  const auto across = [](std::size_t a, std::size_t b) { return (a < 3) != (b < 3); };
  for (std::size_t a = 0; a < 6; ++a)
    for (std::size_t b = 0; b < 6; ++b)
      if (a != b && across(a, b)) w.cluster.network().way(a, b).held = true;
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 120s));
  w.cluster.run_for(5s);
  const double apart = distance(w.cluster.model(0), w.cluster.model(5));
  CHECK(apart > 5 * bound);
  w.cluster.network().reset_all();
  w.cluster.network().heal();
  REQUIRE(w.cluster.run_until([&] { return w.furthest_from(0) < bound; }, 300s));
  w.cluster.run_for(60s);
  CHECK(w.furthest_from(0) < bound);
}

TEST_CASE("a late joiner takes the final model and moves nobody else's") {
  Walkers w(4, 3);
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 60s));
  w.cluster.run_for(3s);
  const std::size_t root = w.lowest();
  std::vector<std::vector<float>> models;
  for (std::size_t i = 0; i < 4; ++i) models.push_back(copy_of(w.cluster.model(i)));
  NodeOptions late;
  late.seeds = {1};
  late.start = random_model(floats, 77);  // it has trained for itself before
  late.budget = 32 * 200 * 4;
  w.cluster.add(late);
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 40s));
  w.cluster.run_for(30s);
  CHECK(distance(w.cluster.model(4), models[root]) < 2 * bound);
  for (std::size_t i = 0; i < 4; ++i) CHECK(distance(w.cluster.model(i), models[i]) < 1e-4);
}

TEST_CASE("after an extension of the budget the nodes go on from the final model and agree again") {
  Walkers w(5, 3);
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 60s));
  CHECK_FALSE(w.cluster.node(2).extend_budget(32 * 100 * 5, w.cluster.now()));
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::training); }, 30s));
  const Step steps = w.cluster.steps(3);
  REQUIRE(w.cluster.run_until([&] { return w.all(Phase::finished); }, 60s));
  CHECK(w.cluster.steps(3) > steps + 50);
  CHECK(w.furthest_from(w.lowest()) < bound);
}
