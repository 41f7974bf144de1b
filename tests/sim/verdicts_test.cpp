// What nodes believe of each other where lines are cut: verdicts of one that hears nobody, and last
// words to one that is silent.
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

TEST_CASE("a node that was cut off, gave the others up and was restarted does not tell them so") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 5; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  const auto state_of = [&](std::size_t seen) {
    return member(cluster.view(4), cluster.id(seen))->record.state;
  };
  std::vector<std::uint64_t> incarnations;
  for (std::size_t i = 0; i < 4; ++i) {
    incarnations.push_back(member(cluster.view(0), cluster.id(i))->record.incarnation);
    cluster.network().way(4, i).held = cluster.network().way(i, 4).held = true;
  }
  REQUIRE(cluster.run_until(
      [&] {
        for (std::size_t i = 0; i < 4; ++i)
          if (state_of(i) != MemberState::failed) return false;
        return true;
      },
      60s));
  cluster.run_for(2s);
  cluster.stop(4);
  cluster.restart(4);
  cluster.network().heal();
  REQUIRE(cluster.run_until([&] { return !cluster.view(4).links.empty(); }, 60s));
  cluster.run_for(20s);
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(state_of(i) == MemberState::alive);
    CHECK(member(cluster.view(0), cluster.id(i))->record.incarnation == incarnations[i]);
    for (std::size_t other = 0; other < 4; ++other)
      CHECK(times_logged(cluster, i, "event=member-failed peer=" + to_hex(cluster.id(other))) == 0);
  }
}

TEST_CASE("a neighbour that stood still while a node left knows that it left") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  cluster.freeze(1, 8s);
  cluster.run_for(500ms);
  REQUIRE_FALSE(cluster.node(0).leave(cluster.now()));
  REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::left; }, 7s));
  cluster.kill(0);
  cluster.run_for(30s);
  CHECK(member(cluster.view(1), cluster.id(0))->record.state == MemberState::left);
}
