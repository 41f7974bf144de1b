// Membership: joining, leaving, refusing, counting, ending.
#include <cmath>

#include "tests/sim/scale_cluster.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

std::size_t given_up(const VirtualCluster& cluster) {
  std::size_t links = 0;
  for (std::size_t i = 0; i < cluster.size(); ++i)
    links += times_logged(cluster, i, "given up for");
  return links;
}

// Each has a link to the next one by id, so all are one cluster whatever the other links are.
bool is_circle(const VirtualCluster& cluster) {
  std::map<NodeId, std::size_t> nodes;
  for (std::size_t i = 0; i < cluster.size(); ++i)
    if (cluster.alive(i)) nodes[cluster.id(i)] = i;
  for (auto at = nodes.begin(); at != nodes.end(); ++at) {
    const auto next = std::next(at) == nodes.end() ? nodes.begin() : std::next(at);
    const std::vector<LinkView> links = cluster.view(at->second).links;
    if (std::ranges::none_of(links, [&](const LinkView& link) {
          return link.peer == next->first && link.state == "open";
        }))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE(
    "a node whose seed does not answer says that it is joining, and joins when the seed appears") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  cluster.add(with_model(schema, 0));
  cluster.kill(0);
  NodeOptions joiner;
  joiner.seeds = {0};
  cluster.add(joiner);
  cluster.run_for(60s);
  CHECK(cluster.node(1).phase() == Phase::joining);
  CHECK(cluster.view(1).members.size() == 1);
  cluster.restart(0);
  REQUIRE(cluster.run_until([&] { return cluster.node(1).phase() == Phase::training; }, 60s));
}

TEST_CASE("two clusters pointed at each other do not merge, and both sides say why") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  NodeOptions first = with_model(schema, 0);
  cluster.add(first);
  cluster.add(first);  // founds another
  REQUIRE(cluster.disk(0).cluster != cluster.disk(1).cluster);
  CHECK_FALSE(cluster.node(1).join({Endpoint{"node0", peer_port_default}}, cluster.now()));
  REQUIRE(cluster.run_until([&] { return has_refusal(cluster.view(0), "cluster-mismatch", true); },
                            30s));
  cluster.run_for(5s);
  CHECK(has_refusal(cluster.view(1), "cluster-mismatch", true));
  CHECK(cluster.view(0).members.size() == 1);
  CHECK(cluster.view(1).members.size() == 1);
}

TEST_CASE("join asks the seed it names at once, also on a node that has neighbours") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  cluster.add(with_model(schema, 0));
  cluster.add(with_model(schema, 1));
  NodeOptions foreign = with_model(schema, 2);
  foreign.seeds = {};
  cluster.add(foreign);
  cluster.run_for(5s);
  REQUIRE(cluster.view(1).links.size() == 1);
  CHECK_FALSE(cluster.node(1).join({Endpoint{"node2", peer_port_default}}, cluster.now()));
  cluster.run_for(2s);
  CHECK(has_refusal(cluster.view(1), "cluster-mismatch", true));
  CHECK(has_refusal(cluster.view(2), "cluster-mismatch", true));
  CHECK(cluster.view(1).links[0].state == "open");
}

TEST_CASE("leave publishes, is durable over a restart, and join undoes it") {
  const Schema schema = schema_of({1000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(5s);
  CHECK_FALSE(cluster.node(2).leave(cluster.now()));
  REQUIRE(cluster.run_until([&] { return cluster.node(2).phase() == Phase::left; }, 10s));
  cluster.run_for(2s);
  CHECK(cluster.disk(2).left);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::left);
  cluster.restart(2);
  cluster.run_for(30s);
  CHECK(cluster.node(2).phase() == Phase::left);
  CHECK(member(cluster.view(1), cluster.id(2))->record.state == MemberState::left);
  CHECK(cluster.node(2).forget(cluster.id(2), cluster.now())->code == "own-record");
  CHECK_FALSE(cluster.node(2).join({}, cluster.now()));
  REQUIRE(cluster.run_until(
      [&] {
        return member(cluster.view(0), cluster.id(2))->record.state == MemberState::alive &&
               cluster.node(2).phase() == Phase::training;
      },
      30s));
  CHECK(cluster.node(2).leave(cluster.now()) == std::nullopt);
  CHECK(cluster.node(2).leave(cluster.now())->code == "already-left");
}

TEST_CASE("a leave that SIGTERM interrupts holds over the restart") {
  const Schema schema = schema_of({1000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(5s);
  REQUIRE_FALSE(cluster.node(2).leave(cluster.now()));
  REQUIRE(cluster.node(2).phase() == Phase::leaving);
  cluster.stop(2);
  cluster.restart(2);
  cluster.run_for(30s);
  CHECK(cluster.node(2).phase() == Phase::left);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::left);
}

TEST_CASE("a node that left and starts from an old disk is known to have left") {
  const Schema schema = schema_of({1000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(5s);
  REQUIRE_FALSE(cluster.node(2).leave(cluster.now()));
  REQUIRE(cluster.run_until([&] { return cluster.node(2).phase() == Phase::left; }, 10s));
  const Disk old = cluster.whole_disk(2);
  REQUIRE_FALSE(cluster.node(2).join({}, cluster.now()));
  REQUIRE(cluster.run_until([&] { return cluster.node(2).phase() == Phase::training; }, 30s));
  for (int life = 0; life < 3; ++life) {
    cluster.kill(2, VirtualCluster::Death::killed);
    cluster.power_on(2);
    cluster.run_for(5s);
  }
  const std::uint64_t known = member(cluster.view(0), cluster.id(2))->record.incarnation;
  cluster.kill(2, VirtualCluster::Death::killed);
  cluster.whole_disk(2) = old;
  cluster.power_on(2);
  REQUIRE(old.state.left);
  REQUIRE(old.state.incarnation + 1 < known);
  for (const std::size_t i : {0u, 1u})
    CHECK(cluster.run_until(
        [&] { return member(cluster.view(i), cluster.id(2))->record.state == MemberState::left; },
        60s));
}

TEST_CASE(
    "the budget ends the job everywhere with models that agree, and a late joiner gets the final "
    "one") {
  const Schema schema = schema_of({1000, 50});
  VirtualCluster cluster(schema, [](std::size_t node, std::span<float> x, Step) {
    for (float& v : x) v -= 0.001f * (v - 0.1f * static_cast<float>(node + 1));
  });
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options = with_model(schema, i);
    options.budget = 32 * 3 * 1000;
    cluster.add(options);
  }
  REQUIRE(cluster.run_until(
      [&] {
        return cluster.node(0).phase() == Phase::finished &&
               cluster.node(1).phase() == Phase::finished &&
               cluster.node(2).phase() == Phase::finished;
      },
      120s));
  for (std::size_t i = 0; i < 3; ++i) CHECK(cluster.view(i).consensus_distance < 0.004);
  cluster.run_for(3s);
  const Samples total = cluster.view(0).cluster_samples;
  CHECK(total >= 96000);
  CHECK(total < 96000 * 1.05);
  CHECK(cluster.view(1).cluster_samples == total);
  NodeOptions late;
  late.seeds = {1};
  late.budget = 96000;
  const std::size_t i = cluster.add(late);
  REQUIRE(cluster.run_until([&] { return cluster.node(i).phase() == Phase::finished; }, 30s));
  CHECK(cluster.steps(i) <= 8);
  CHECK(cluster.model(i)[3] == doctest::Approx(cluster.model(1)[3]).epsilon(0.01));
}

TEST_CASE(
    "all nodes killed and restarted in another order form the same cluster and count every sample "
    "once") {
  const Schema schema = schema_of({500});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  for (std::size_t i = 0; i < 3; ++i) cluster.kill(i);
  Samples sum = 0;
  for (std::size_t i = 0; i < 3; ++i) sum += cluster.steps(i) * 32;
  for (const std::size_t i : {2u, 0u, 1u}) {
    cluster.restart(i);
    cluster.run_for(3s);
  }
  REQUIRE(cluster.run_until(
      [&] { return cluster.view(0).links.size() == 2 && cluster.view(1).links.size() == 2; }, 30s));
  cluster.run_for(5s);
  for (std::size_t i = 0; i < 3; ++i) CHECK_FALSE(cluster.node(i).pause(cluster.now()));
  cluster.run_for(5s);
  Samples now = 0;
  for (std::size_t i = 0; i < 3; ++i) now += cluster.steps(i) * 32;
  CHECK(now > sum);
  for (std::size_t i = 0; i < 3; ++i) CHECK(cluster.view(i).cluster_samples == now);
  CHECK(cluster.disk(0).cluster == cluster.disk(2).cluster);
}

TEST_CASE("eight nodes keep to three or four links each, and joining works through any member") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 8; ++i) {
    NodeOptions options = with_model(schema, i);
    if (i > 0) options.seeds = {i - 1};
    cluster.add(options);
    cluster.run_for(2s);
  }
  cluster.run_for(20s);
  for (std::size_t i = 0; i < 8; ++i) {
    const NodeView view = cluster.view(i);
    CHECK(view.members.size() == 8);
    std::size_t open = 0;
    for (const LinkView& link : view.links) open += link.state == "open" ? 1 : 0;
    CHECK(open >= 3);
    CHECK(open <= 4);
  }
}

TEST_CASE("links go round all members, and again after one died and one came") {
  const Schema schema = schema_of({200});
  for (const std::uint32_t links : {2u, 3u}) {
    CAPTURE(links);
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < 12; ++i) {
      NodeOptions options = with_model(schema, i);
      options.membership.links = links;
      options.membership.rotate = 0s;
      cluster.add(options);
    }
    CHECK(cluster.run_until([&] { return is_circle(cluster); }, 60s));
    cluster.kill(5);
    NodeOptions joiner;
    joiner.seeds = {3};
    joiner.membership.links = links;
    cluster.add(joiner);
    cluster.run_for(15s);  // its death is noticed
    CHECK(cluster.run_until([&] { return is_circle(cluster); }, 60s));
  }
}

TEST_CASE("a newcomer gets links where all have as many as they accept, and then they rest") {
  const Schema schema = schema_of({200});
  constexpr std::size_t before = 5;
  Random noise(3);
  VirtualCluster cluster(schema, [&noise](std::size_t, std::span<float> x, Step) {
    for (float& value : x) value += static_cast<float>(0.02 * (noise.uniform() - 0.5));
  });
  for (std::size_t i = 0; i < before; ++i) {
    NodeOptions options = with_model(schema, i);
    options.membership.links = options.membership.links_max = before - 1;
    options.membership.rotate = 0s;
    cluster.add(options);
  }
  cluster.run_for(10s);
  for (std::size_t i = 0; i < before; ++i) REQUIRE(cluster.view(i).links.size() == before - 1);
  NodeOptions joiner;
  joiner.seeds = {0};
  joiner.membership.rotate = 0s;
  const std::size_t newcomer = cluster.add(joiner);
  const auto open = [&](std::size_t i) {
    return std::ranges::count_if(cluster.view(i).links,
                                 [](const LinkView& link) { return link.state == "open"; });
  };
  CHECK(cluster.run_until([&] { return open(newcomer) >= 3; }, 60s));
  cluster.run_for(30s);
  const std::size_t changes = given_up(cluster);
  cluster.run_for(120s);
  CHECK(given_up(cluster) == changes);
  for (std::size_t i = 0; i <= before; ++i) {
    CAPTURE(i);
    CHECK(open(i) >= 3);
    CHECK(open(i) <= static_cast<int>(before) - 1);
  }
}

TEST_CASE("one node that can be reached takes in eight that only dial out") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  cluster.add(with_model(schema, 0));
  constexpr std::size_t members = 9;
  for (std::size_t i = 1; i < members; ++i) {
    NodeOptions options;
    options.seeds = {0};
    cluster.add(options);
    for (std::size_t j = 1; j < i; ++j) {
      cluster.network().way(i, j).held = true;
      cluster.network().way(j, i).held = true;
    }
  }
  const auto all_train = [&] {
    for (std::size_t i = 0; i < members; ++i)
      if (cluster.node(i).phase() != Phase::training || cluster.view(i).links.empty()) return false;
    return true;
  };
  CHECK(cluster.run_until(all_train, 120s));
  cluster.run_for(60s);
  CHECK(all_train());
}

TEST_CASE("a round trip that takes longer than the time between two pings is measured") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  cluster.set_latency(1500ms);
  REQUIRE(cluster.run_until(
      [&] { return !cluster.view(0).links.empty() && cluster.view(0).links[0].rtt_ms > 0; }, 60s));
  CHECK(cluster.view(0).links[0].rtt_ms == doctest::Approx(3000).epsilon(0.01));
}

TEST_CASE(
    "a hundred members: who joins or dies is known soon, at little traffic, over links that "
    "connect all") {
  constexpr std::size_t members = 100;
  const Duration bound = from_seconds(10 * std::log2(members));  // periods of a second
  ScaleCluster cluster(members);
  CHECK(cluster.until_all_know(members, bound) < bound);
  cluster.run_for(20s);
  const ScaleCluster::Traffic traffic = cluster.traffic_during(60s);
  CHECK(traffic.mean > 0);
  CHECK(traffic.most < 2000);
  const ScaleCluster::Overlay overlay = cluster.overlay();
  CHECK(overlay.connected);
  CHECK(overlay.links_min >= 3);
  CHECK(overlay.links_max <= 4);
  // After 90 s, of stats that are ten seconds old and more.
  const ScaleCluster::Counted counted = cluster.counted();
  CHECK(counted.known < 0.95);
  CHECK(counted.estimate_off_most < 0.5 * (1 - counted.known));
  CHECK(cluster.join_one() < bound);
  CHECK(cluster.crash_one() < bound);
  CHECK(cluster.false_failures() == 0);
  cluster.saturate(60s);
  CHECK(cluster.false_failures() == 0);
}

TEST_CASE("a member that nobody has a link to is found dead, by probes or by who comes before it") {
  const Schema schema = schema_of({20});
  for (const Duration probe : {Duration(0s), Duration(10s)}) {
    VirtualCluster cluster(schema);
    constexpr std::size_t members = 12;
    for (std::size_t i = 0; i < members; ++i) {
      NodeOptions options = with_model(schema, i);
      options.membership.links = 2;
      options.membership.probe = probe;
      options.membership.rotate = 0s;
      cluster.add(options);
    }
    NodeOptions off;
    off.seeds = {0};
    const NodeId ghost = cluster.id(cluster.add_off(off));
    cluster.run_for(10s);
    // A disk remembers it as alive, and all nodes learn of it.
    MemberRecord record;
    record.id = ghost;
    record.name = "ghost";
    record.address = VirtualCluster::endpoint(members);
    record.phase = Phase::training;
    record.incarnation = 1;
    cluster.kill(members - 1);
    cluster.whole_disk(members - 1).state.members.push_back(record);
    cluster.restart(members - 1);
    const auto all_hold_it_for = [&](MemberState state) {
      for (std::size_t i = 0; i < members; ++i) {
        const NodeView view = cluster.view(i);
        const MemberView* seen = member(view, ghost);
        if (seen == nullptr || seen->record.state != state) return false;
      }
      return true;
    };
    REQUIRE(cluster.run_until([&] { return all_hold_it_for(MemberState::alive); }, 30s));
    CHECK(cluster.run_until([&] { return all_hold_it_for(MemberState::failed); }, 120s));
  }
}

TEST_CASE("after a restart members that were met are dialled before any that were invented") {
  const Schema schema = schema_of({20});
  VirtualCluster cluster(schema);
  constexpr std::size_t members = 4, invented = 600;
  for (std::size_t i = 0; i < members; ++i) cluster.add(with_model(schema, i));
  NodeOptions off;
  off.seeds = {0};
  for (std::size_t i = 0; i < invented; ++i) (void)cluster.add_off(off);
  cluster.run_for(20s);
  for (std::size_t i = 0; i < members; ++i) {
    cluster.kill(i);
    cluster.options(i).seeds.clear();
    NodeState& state = cluster.whole_disk(i).state;
    CHECK(state.met.size() == members - 1);
    for (std::size_t j = members; j < members + invented; ++j) {
      MemberRecord record;
      record.id = cluster.id(j);
      record.name = "invented";
      record.address = VirtualCluster::endpoint(j);
      record.incarnation = 1;
      state.members.push_back(record);
    }
  }
  for (std::size_t i = 0; i < members; ++i) cluster.restart(i);
  CHECK(cluster.run_until(
      [&] {
        for (std::size_t i = 0; i < members; ++i)
          if (cluster.view(i).links_open < members - 1) return false;
        return true;
      },
      3s));
}

TEST_CASE(
    "a member that failed is forgotten everywhere and over a restart, counts on, and is back when "
    "it comes back") {
  const Schema schema = schema_of({20});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  const NodeId victim = cluster.id(2);
  CHECK(cluster.node(0).forget(victim, cluster.now())->code == "still-alive");
  CHECK(cluster.node(0).forget(cluster.id(0), cluster.now())->code == "still-alive");
  CHECK(cluster.node(0).forget(NodeId{1}, cluster.now())->code == "unknown-member");
  cluster.kill(2);
  REQUIRE(cluster.run_until(
      [&] { return member(cluster.view(0), victim)->record.state == MemberState::failed; }, 60s));
  const Samples samples = member(cluster.view(0), victim)->record.samples;
  CHECK(samples > 0);
  cluster.act(0, [&](Node& node, Instant now) { CHECK_FALSE(node.forget(victim, now)); });
  REQUIRE(cluster.run_until([&] { return member(cluster.view(1), victim) == nullptr; }, 5s));
  CHECK(cluster.view(1).forgotten == 1);
  CHECK(cluster.view(1).forgotten_samples == samples);
  cluster.restart(1);
  cluster.run_for(5s);
  CHECK(member(cluster.view(1), victim) == nullptr);
  CHECK(cluster.view(1).cluster_samples >= cluster.view(1).own_samples + samples);
  cluster.restart(2);
  REQUIRE(cluster.run_until([&] { return member(cluster.view(1), victim) != nullptr; }, 60s));
  CHECK(cluster.view(1).forgotten == 0);
}

TEST_CASE("two halves that have forgotten each other become one cluster again") {
  const Schema schema = schema_of({20});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 4; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < 4; ++b)
      if ((a < 2) != (b < 2)) cluster.network().way(a, b).held = true;
  const auto knows = [&](std::size_t a, std::size_t b, MemberState state) {
    const NodeView view = cluster.view(a);
    const MemberView* seen = member(view, cluster.id(b));
    return seen != nullptr && seen->record.state == state;
  };
  for (const auto& [a, b] : {std::pair{0, 2}, {0, 3}, {2, 0}, {2, 1}}) {
    REQUIRE(cluster.run_until([&] { return knows(a, b, MemberState::failed); }, 60s));
    cluster.act(a, [&](Node& node, Instant now) { CHECK_FALSE(node.forget(cluster.id(b), now)); });
  }
  cluster.run_for(20s);
  CHECK(cluster.view(1).forgotten == 2);
  CHECK(cluster.view(3).forgotten == 2);
  cluster.network().heal();
  CHECK(cluster.run_until(
      [&] {
        for (std::size_t a = 0; a < 4; ++a)
          for (std::size_t b = 0; b < 4; ++b)
            if (a != b && !knows(a, b, MemberState::alive)) return false;
        return true;
      },
      180s));
}
