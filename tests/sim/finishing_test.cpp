// The final exchange: models that agree, whatever happens meanwhile.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t floats = 20'000;
const double bound = ExchangePolicy{}.consensus_bound;
const double final_distance_max = 3 * bound;  // of two final models: see EXCHANGE.md

double relative_distance(std::span<const float> a, std::span<const float> b) {
  double square = 0, norm = 0;
  for (std::size_t p = 0; p < a.size(); ++p) {
    square += std::pow(static_cast<double>(a[p]) - static_cast<double>(b[p]), 2);
    norm += static_cast<double>(b[p]) * static_cast<double>(b[p]);
  }
  return std::sqrt(square / norm);
}

// Nodes of one model, each of which walks its own way while it trains.
struct Walkers {
  Walkers(std::size_t count, std::uint32_t links, ReplicaFormat replicas = ReplicaFormat::fp32,
          bool exchanges = true)
      : cluster(schema_of({18'000, 1'900, 100}), [this](std::size_t, std::span<float> x, Step) {
          for (float& value : x) value += static_cast<float>(0.02 * (noise.uniform() - 0.5));
        }) {
    for (std::size_t i = 0; i < count; ++i) {
      NodeOptions options;
      if (i == 0)
        options.start = random_model(floats, 5);
      else
        options.seeds = {0};
      options.budget = 32 * 200 * count;
      options.membership.links = links;
      options.exchange.replicas = replicas;
      options.exchange.enabled = exchanges;
      cluster.add(options);
    }
  }
  // All but the first `hubs`.
  void only_dial_out(std::size_t hubs) {
    for (std::size_t i = hubs; i < cluster.size(); ++i)
      for (std::size_t j = hubs; j < i; ++j) {
        cluster.network().way(i, j).held = true;
        cluster.network().way(j, i).held = true;
      }
  }
  void write_checkpoints() {
    for (std::size_t i = 0; i < cluster.size(); ++i) cluster.write_checkpoint(i);
  }
  // All have finished, no node waits for another, and their final models are one.
  [[nodiscard]] bool has_one_final_model() {
    for (std::size_t i = 0; i < cluster.size(); ++i)
      if (cluster.alive(i) &&
          (cluster.node(i).phase() != Phase::finished || !cluster.view(i).waiting_for.empty()))
        return false;
    std::vector<std::size_t> living;
    for (std::size_t i = 0; i < cluster.size(); ++i)
      if (cluster.alive(i)) living.push_back(i);
    const auto distance = cluster.final_distance(living);
    return distance && *distance < final_distance_max;
  }
  // The largest distance of a living model to the mean, over the mean's norm.
  [[nodiscard]] double consensus_distance() const {
    double square = 0;
    for (const double x : cluster.mean()) square += x * x;
    return cluster.consensus_distance() / std::sqrt(square / floats);
  }

  Random noise{1};
  VirtualCluster cluster;
};

}  // namespace

TEST_CASE("a node whose batch changed before its last step looks as seldom as others at the end") {
  Walkers walkers(4, 3);
  VirtualCluster& cluster = walkers.cluster;
  std::array<int, 4> snapshots{};
  Hooks hooks;
  hooks.snapshot = [&](std::size_t node, Snapshot& snapshot) {
    if (cluster.node(node).phase() != Phase::finishing) return;
    ++snapshots[node];
    if (node == 1) snapshot.step_seconds = 0;  // not known: no step of the new batch was made
  };
  cluster.set_hooks(std::move(hooks));
  cluster.run_until([&] { return walkers.has_one_final_model(); }, 60s);
  CHECK(walkers.has_one_final_model());
  CAPTURE(snapshots[0]);
  CHECK(snapshots[1] > 0);
  CHECK(snapshots[1] < 2 * snapshots[0]);
}

TEST_CASE("a node that comes once the budget is spent looks as seldom as others at the end") {
  Walkers walkers(1, 3);
  VirtualCluster& cluster = walkers.cluster;
  cluster.set_latency(1250ms);
  int snapshots = 0;
  Hooks hooks;
  hooks.snapshot = [&](std::size_t node, Snapshot&) {
    if (node == 1 && cluster.node(1).phase() == Phase::finishing) ++snapshots;
  };
  cluster.set_hooks(std::move(hooks));
  REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::finished; }, 60s));
  NodeOptions late;
  late.seeds = {0};
  late.budget = 32 * 200;
  cluster.add(late);
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
  CHECK(snapshots > 0);
  CHECK(snapshots < 50);
}

TEST_CASE("nobody waits at the end for a node that has nothing to say") {
  Walkers w(3, 3);
  VirtualCluster& cluster = w.cluster;
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 60s));
  const auto ends_within = [&](Duration limit) {
    return cluster.run_until([&] { return all_in(cluster, Phase::finished); }, limit);
  };
  // One node makes the only step, or two do; a finished neighbour's own turn may come 10 s later.
  for (std::size_t i = 0; i < 12; ++i) {
    CAPTURE(i);
    REQUIRE_FALSE(cluster.node(i % 3).extend_budget(1, cluster.now()));
    REQUIRE(cluster.run_until([&] { return cluster.node(i % 3).phase() != Phase::finished; }, 1s));
    CHECK(ends_within(3s));
    cluster.run_for(2s);
  }
  // A whole model that was sent in int8 is further away than finished models may be.
  for (int late = 0; late < 3; ++late) {
    CAPTURE(late);
    NodeOptions options;
    options.seeds = {0};
    options.budget = 32 * 200 * 3;
    cluster.add(options);
    const std::size_t joiner = cluster.size() - 1;
    REQUIRE(
        cluster.run_until([&] { return cluster.node(joiner).phase() == Phase::finishing; }, 30s));
    CHECK(ends_within(3s));
  }
}

TEST_CASE("a box 200 times slower holds the end up by its last step, and never beyond the cap") {
  for (const Duration step : {Duration(2s), Duration(100s)}) {
    CAPTURE(step.count());
    Walkers w(3, 3);
    VirtualCluster& cluster = w.cluster;
    NodeOptions slow;
    slow.seeds = {0};
    slow.step_time = step;
    slow.budget = 32 * 200 * 3;
    cluster.add(slow);
    REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::finishing; }, 30s));
    const Instant spent = cluster.now();
    REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 300s));
    CHECK(cluster.now() - spent < std::min(step, MembershipPolicy{}.finish_cap) + 2s);
    CHECK(cluster.run_until([&] { return w.has_one_final_model(); }, 300s));
  }
}

TEST_CASE("a node says that models agree only where another one is alive and exchanges") {
  const auto finish = [](std::size_t count, bool exchanges, bool others_die) {
    Walkers w(count, 3, ReplicaFormat::fp32, exchanges);
    VirtualCluster& cluster = w.cluster;
    REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 10s));
    if (others_die)
      for (std::size_t i = 1; i < count; ++i) cluster.kill(i);
    REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::finished; }, 120s));
    return std::array<std::size_t, 3>{times_logged(cluster, 0, "why=\"the models agree\""),
                                      times_logged(cluster, 0, "why=\"no other member is alive"),
                                      times_logged(cluster, 0, "why=\"the exchange is off")};
  };
  CHECK(finish(2, true, false) == std::array<std::size_t, 3>{1, 0, 0});
  CHECK(finish(1, true, false) == std::array<std::size_t, 3>{0, 1, 0});
  CHECK(finish(3, true, true) == std::array<std::size_t, 3>{0, 1, 0});
  CHECK(finish(2, false, false) == std::array<std::size_t, 3>{0, 0, 1});
}

TEST_CASE("the final exchange brings the models together and keeps their mean") {
  for (const std::uint32_t links : {3u, 4u}) {
    CAPTURE(links);
    Walkers w(12, links);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
    const double before = w.consensus_distance();
    const auto mean = w.cluster.mean();
    const std::uint64_t bytes = w.cluster.bytes();
    // the cap would be 60
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 50s));
    double moved = 0, square = 0;
    const auto now = w.cluster.mean();
    for (std::size_t p = 0; p < floats; ++p)
      moved += std::pow(now[p] - mean[p], 2), square += mean[p] * mean[p];
    std::printf(
        "12 nodes, %u links: %.4f apart before the final exchange, %.5f after it; the mean moved "
        "by %.5f, %.1f models were sent\n",
        links, before, w.consensus_distance(), std::sqrt(moved / square),
        static_cast<double>(w.cluster.bytes() - bytes) / (4.0 * floats));
    CHECK(before > 0.02);
    CHECK(w.consensus_distance() < bound);
    CHECK(std::sqrt(moved / square) < 0.16 * before);  // outer momentum still under way
    for (std::size_t i = 0; i < w.cluster.size(); ++i)
      CHECK(w.cluster.view(i).consensus_distance < bound);
  }
}

TEST_CASE("where most only dial out, the models agree as soon") {
  for (const std::size_t hubs : {1u, 2u, 3u})
    for (const std::size_t count : {4u, 8u, 9u}) {
      CAPTURE(hubs);
      CAPTURE(count);
      Walkers w(count, 3);
      w.cluster.set_latency(200us);
      w.only_dial_out(hubs);
      REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 120s));
      // After the cap of 60 s they would finish apart.
      CHECK(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 20s));
      CHECK(w.consensus_distance() < 2 * bound);
    }
}

TEST_CASE(
    "neighbours of a node that nobody takes from agree, since it takes one's model and loss") {
  Walkers w(5, 4);
  Hooks hooks;
  hooks.snapshot = [](std::size_t node, Snapshot& snapshot) {
    snapshot.loss = node == 0 ? 5 : 1 + 0.1 * static_cast<double>(node);
  };
  w.cluster.set_hooks(std::move(hooks));
  w.cluster.run_for(1s);  // they meet, since of two losses it cannot be told whose is wrong
  w.only_dial_out(1);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
  CHECK(w.cluster.run_until([&] { return w.has_one_final_model(); }, 20s));
  CHECK(w.cluster.view(0).loss < 2);
  CHECK(w.cluster.view(0).loss > 1);
}

TEST_CASE("a node dies in the final exchange: the others agree, and so does it when it is back") {
  for (const auto death : {VirtualCluster::Death::killed, VirtualCluster::Death::power_lost}) {
    Walkers w(8, 3);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
    w.cluster.kill(3, death);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 40s));
    CHECK(w.consensus_distance() < bound);
    w.cluster.restart(3);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 40s));
    CHECK(w.cluster.run_until([&] { return w.consensus_distance() < bound; }, 120s));
  }
}

TEST_CASE(
    "a node stands still while the others finish: they do not wait for the cap, and it agrees with "
    "them afterwards") {
  Walkers w(8, 3);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 100; }, 60s));
  w.cluster.freeze(5, 60s);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished, 5); }, 50s));
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 80s));
  CHECK(w.cluster.run_until([&] { return w.consensus_distance() < bound; }, 120s));
}

TEST_CASE("two halves that finished apart agree when they meet again") {
  Walkers w(6, 5);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(5) > 50; }, 60s));
  for (std::size_t a = 0; a < 6; ++a)
    for (std::size_t b = 0; b < 6; ++b)
      if ((a < 3) != (b < 3)) w.cluster.network().way(a, b).held = true;
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 120s));
  w.cluster.run_for(5s);
  CHECK(w.consensus_distance() > 5 * bound);
  w.cluster.network().reset_all();
  w.cluster.network().heal();
  REQUIRE(w.cluster.run_until([&] { return w.consensus_distance() < bound; }, 300s));
  w.cluster.run_for(60s);
  CHECK(w.consensus_distance() < bound);
}

TEST_CASE("a short job of quick nodes ends close to its budget, and not before it") {
  for (const auto one_way : {1ms, 300ms}) {
    CAPTURE(one_way.count());
    Walkers walkers(8, 3);
    VirtualCluster& cluster = walkers.cluster;
    for (std::size_t i = 0; i < 8; ++i) cluster.options(i).step_time = 50ms;
    cluster.set_latency(one_way);
    REQUIRE(cluster.run_until([&] { return walkers.has_one_final_model(); }, 120s));
    Samples trained = 0;
    for (std::size_t i = 0; i < 8; ++i) trained += cluster.samples(i);
    const Samples budget = 32 * 200 * 8;
    CHECK(trained >= budget);
    CHECK(trained < budget + budget / 25);
  }
}

// A schedule that waits for the second tick loses the warm-up of a short job.
TEST_CASE("from its first steps on a node knows what the others train on") {
  Walkers walkers(8, 3);
  VirtualCluster& cluster = walkers.cluster;
  for (std::size_t i = 0; i < 8; ++i) cluster.options(i).step_time = 50ms;
  REQUIRE(cluster.run_until([&] { return cluster.steps(7) >= 8; }, 10s));
  for (int steps = 8; steps < 30; ++steps, cluster.run_for(50ms)) {
    Samples trained = 0;
    for (std::size_t i = 0; i < 8; ++i) trained += cluster.samples(i);
    for (std::size_t i = 0; i < 8; ++i) {
      const auto known = static_cast<double>(cluster.view(i).cluster_samples_estimate);
      CHECK(known > 0.6 * static_cast<double>(trained));
      CHECK(known < 1.05 * static_cast<double>(trained) + 8 * 32);
    }
  }
}

TEST_CASE("after an extension of the budget the nodes train on and agree again") {
  Walkers w(5, 3);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 60s));
  CHECK_FALSE(w.cluster.node(2).extend_budget(32 * 100 * 5, w.cluster.now()));
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::training); }, 30s));
  const Step steps = w.cluster.steps(3);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 60s));
  CHECK(w.cluster.steps(3) > steps + 50);
  CHECK(w.consensus_distance() < bound);
}

// ---- the file `final` -------------------------------------------------------------------------

TEST_CASE(
    "nodes are killed while they finish and come back with an older model: all final models are "
    "one") {
  for (const std::size_t count : {2u, 3u, 6u})
    for (const auto died_for : {Duration(0s), Duration(500ms), Duration(4s), Duration(30s)}) {
      CAPTURE(count);
      CAPTURE(seconds(died_for));
      Walkers w(count, 3);
      REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 100; }, 60s));
      w.write_checkpoints();
      REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
      for (const std::size_t victim : {std::size_t{0}, count - 1}) w.cluster.kill(victim);
      w.cluster.run_for(died_for);
      for (const std::size_t victim : {std::size_t{0}, count - 1})
        w.cluster.start_from_disk(victim);
      CHECK(w.cluster.run_until([&] { return w.has_one_final_model(); }, 120s));
      w.cluster.run_for(120s);
      CHECK(w.has_one_final_model());
    }
}

TEST_CASE(
    "a node restarts into a finished cluster with an older model: it ends with the others' model, "
    "which moves little") {
  // On a slow line it makes some steps before it hears that the others have finished.
  for (const Duration one_way : {Duration(1ms), Duration(50ms)}) {
    Walkers w(5, 3);
    w.cluster.set_latency(one_way);
    REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 50; }, 60s));
    w.write_checkpoints();
    w.cluster.kill(4);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 120s));
    const std::vector<float> before = w.cluster.whole_disk(0).final_model;
    w.cluster.start_from_disk(4);
    const double apart = relative_distance(w.cluster.model(4), before);
    CHECK(w.cluster.run_until([&] { return w.has_one_final_model(); }, 120s));
    w.cluster.run_for(120s);
    CHECK(w.has_one_final_model());
    const double moved = relative_distance(w.cluster.model(0), before);
    std::printf("restarted into a finished cluster, %.4f away: the others moved by %.4f\n", apart,
                moved);
    CHECK(moved < 0.1 * apart);  // equal weights would move them by 0.2
  }
}

TEST_CASE("a node stands still from before the end until after it: all final models are one") {
  Walkers w(4, 3);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 100; }, 60s));
  w.cluster.freeze(2, 40s);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished, 2); }, 60s));
  CHECK(w.cluster.run_until([&] { return w.has_one_final_model(); }, 120s));
  w.cluster.run_for(120s);
  CHECK(w.has_one_final_model());
}

TEST_CASE(
    "all lose power while they finish and come back with models of unlike age: all final models "
    "are one") {
  Walkers w(4, 3);
  for (std::size_t i = 0; i < 4; ++i) {
    REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 40 * (i + 1); }, 60s));
    w.cluster.write_checkpoint(i);
  }
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing); }, 60s));
  for (std::size_t i = 0; i < 4; ++i) w.cluster.kill(i, VirtualCluster::Death::power_lost);
  for (std::size_t i = 0; i < 4; ++i) {
    w.cluster.start_from_disk(i);
    w.cluster.run_for(3s);
  }
  CHECK(w.cluster.run_until([&] { return w.has_one_final_model(); }, 180s));
  w.cluster.run_for(120s);
  CHECK(w.has_one_final_model());
}

TEST_CASE("a member without a model delays the end until the cap, and is then named") {
  Walkers w(3, 2);
  REQUIRE(w.cluster.run_until([&] { return w.cluster.steps(0) > 100; }, 60s));
  w.cluster.act(2, [](Node& node, Instant local) { node.on_waiting_for_data("a disk", local); });
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finishing, 2); }, 60s));
  w.cluster.run_for(50s);  // the cap is 60
  for (const std::size_t i : {0u, 1u}) {
    CHECK(w.cluster.node(i).phase() == Phase::finishing);
    CHECK(w.cluster.view(i).waiting_for.find("node2") != std::string::npos);
  }
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished, 2); }, 15s));
  for (const std::size_t i : {0u, 1u}) {
    CHECK(w.cluster.view(i).waiting_for.find("node2 is waiting-for-data") != std::string::npos);
    CHECK(times_logged(w.cluster, i, "event=final-apart") == 1);
  }
  w.cluster.kill(2);
  CHECK(w.cluster.run_until([&] { return w.has_one_final_model(); }, 60s));
}

TEST_CASE("the only other member, which has no model to exchange yet, is named with its phase") {
  Walkers w(1, 2);
  REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 60s));
  NodeOptions late;
  late.seeds = {0};
  late.knows_job = false;
  w.cluster.add(late);
  const auto prepares = [&] { return w.cluster.node(1).phase() == Phase::preparing; };
  REQUIRE(w.cluster.run_until(prepares, 60s));
  CHECK(w.cluster.run_until(
      [&] { return w.cluster.view(0).waiting_for == "one model everywhere; node1 is preparing"; },
      10s));
  CHECK(prepares());
}

TEST_CASE(
    "an undisturbed end comes once: the final model is written, and again at most when the models "
    "have settled") {
  for (const std::size_t count : {2u, 5u, 12u}) {
    CAPTURE(count);
    Walkers w(count, 3, count == 5 ? ReplicaFormat::bf16 : ReplicaFormat::fp32);
    std::vector<int> writes(count);
    Hooks hooks;
    hooks.final_model = [&](std::size_t node) { return ++writes[node], true; };
    w.cluster.set_hooks(hooks);
    REQUIRE(w.cluster.run_until([&] { return all_in(w.cluster, Phase::finished); }, 60s));
    w.cluster.run_for(1300s);  // links are rotated every ten minutes
    CHECK(w.has_one_final_model());
    for (std::size_t i = 0; i < count; ++i) {
      // Of twelve some are several links apart, and go on settling.
      CHECK(times_logged(w.cluster, i, "to=finished") >= 1);
      CHECK(times_logged(w.cluster, i, "to=finished") <= (count > 8 ? 2 : 1));
      CHECK(writes[i] >= 1);
      CHECK(writes[i] <= (count > 8 ? 3 : 2));
    }
  }
}

TEST_CASE("far nodes finish some round trips after the budget is spent") {
  for (const auto latency : {0ms, 250ms, 500ms, 1250ms}) {
    CAPTURE(latency.count());
    Walkers walkers(8, 3);
    VirtualCluster& cluster = walkers.cluster;
    for (std::size_t i = 0; i < 8; ++i) cluster.options(i).step_time = 50ms;
    cluster.set_latency(latency);
    REQUIRE(cluster.run_until(
        [&] {
          for (std::size_t i = 0; i < 8; ++i)
            if (cluster.node(i).phase() < Phase::finishing) return false;
          return true;
        },
        300s));
    CHECK(cluster.run_until([&] { return walkers.has_one_final_model(); }, 3s + 20 * latency));
  }
}
