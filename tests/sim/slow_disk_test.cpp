// A node with a slow or stuck disk publishes nothing that a restart would contradict, and otherwise
// works as usual.
#include "core/node/durable_claims.h"
#include "core/wire/control.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

// A member accuses `node` of silence.
void accuse(VirtualCluster& cluster, std::size_t node) {
  const Suspicion suspicion{
      .id = cluster.id(node), .incarnation = cluster.view(node).incarnation, .by = NodeId{99}};
  const Bytes message =
      encode_control(Members{.records = {}, .stats = {}, .suspicions = {suspicion}});
  const auto pairs = cluster.network().sessions_of(node);
  REQUIRE_FALSE(pairs.empty());
  const SessionId session = pairs[0].ids[pairs[0].hosts[0] == node ? 0 : 1];
  cluster.act(
      node, [&](Node& n, Instant local) { n.on_message(session, Lane::control, message, local); });
}

std::uint64_t incarnation_at(VirtualCluster& cluster, std::size_t at, std::size_t of) {
  const NodeView view = cluster.view(at);
  const MemberView* found = member(view, cluster.id(of));
  return found == nullptr ? 0 : found->record.incarnation;
}

std::size_t suspicions(VirtualCluster& cluster) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < cluster.size(); ++i)
    for (const std::string& line : cluster.log(i))
      count += line.find("event=member-suspect") != std::string::npos;
  return count;
}

// Linked, and past what a start writes.
void add_three(VirtualCluster& cluster, const Schema& schema) {
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(cluster.network().sessions_of(i).size() == 2);
}

}  // namespace

TEST_CASE(
    "while its disk takes 12 s for a state, or is stuck, a node trains, exchanges and is suspected "
    "by nobody") {
  const Schema schema = schema_of({2000});
  for (const bool stuck : {false, true}) {
    CAPTURE(stuck);
    VirtualCluster cluster(schema);
    add_three(cluster, schema);
    const Step before = cluster.steps(2);
    const auto said = [&] {
      return cluster.view(2).links[0].counters.turns_spoken +
             cluster.view(2).links[1].counters.turns_spoken;
    };
    const std::uint64_t said_before = said();
    stuck ? cluster.stick_disk(2, true) : cluster.slow_disk(2, 12s);
    cluster.run_for(60s);
    CHECK(cluster.steps(2) - before == 6000);
    CHECK(said() > said_before + 20);
    CHECK(suspicions(cluster) == 0);
  }
}

TEST_CASE(
    "a node refutes within what it has reserved whatever its disk does, and beyond that when its "
    "disk is well again") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  add_three(cluster, schema);
  cluster.stick_disk(2, true);
  const std::uint64_t reserved = cluster.disk(2).incarnation;
  for (std::uint64_t i = 0; i < DurableClaims::reserve; ++i) {
    const std::uint64_t before = incarnation_at(cluster, 0, 2);
    accuse(cluster, 2);
    REQUIRE(cluster.run_until([&] { return incarnation_at(cluster, 0, 2) == before + 1; }, 5s));
  }
  CHECK(incarnation_at(cluster, 0, 2) == reserved);
  accuse(cluster, 2);
  cluster.run_for(20s);
  CHECK(incarnation_at(cluster, 0, 2) == reserved);
  CHECK(incarnation_at(cluster, 1, 2) == reserved);
  cluster.stick_disk(2, false);
  REQUIRE(cluster.run_until(
      [&] {
        return incarnation_at(cluster, 0, 2) == reserved + 1 &&
               incarnation_at(cluster, 1, 2) == reserved + 1;
      },
      10s));
  CHECK(cluster.disk(2).incarnation >= reserved + 1);
}

TEST_CASE(
    "a start says nothing before its incarnation is on disk, so one that dies meanwhile is no "
    "contradiction") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  add_three(cluster, schema);
  cluster.kill(2);
  const std::uint64_t known = incarnation_at(cluster, 0, 2);
  cluster.stick_disk(2, true);
  cluster.restart(2);
  cluster.run_for(5s);
  CHECK(cluster.view(2).waiting_for.find("disk") != std::string::npos);
  cluster.run_for(25s);  // by now it trains alone, as without a network
  CHECK(incarnation_at(cluster, 0, 2) == known);
  CHECK(cluster.view(2).members.size() == 3);  // it knows them, and dials none
  const std::uint64_t before = cluster.disk(2).incarnation;
  cluster.kill(2);
  CHECK(cluster.disk(2).incarnation == before);
  cluster.stick_disk(2, false);
  cluster.restart(2);
  REQUIRE(cluster.run_until([&] { return incarnation_at(cluster, 0, 2) > known; }, 30s));
}

TEST_CASE(
    "a joiner whose disk takes 8 s for a state joins, and says its cluster when the disk holds "
    "it") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  add_three(cluster, schema);
  NodeOptions joiner;
  joiner.seeds = {0};
  const std::size_t late = cluster.add_off(joiner);
  cluster.slow_disk(late, 8s);
  cluster.power_on(late);
  cluster.run_for(7s);
  CHECK(cluster.view(0).members.size() == 3);
  REQUIRE(cluster.run_until(
      [&] {
        return cluster.node(late).phase() == Phase::training &&
               cluster.view(late).links.size() >= 2;
      },
      30s));
  REQUIRE(cluster.run_until([&] { return cluster.disk(late).cluster == cluster.disk(0).cluster; },
                            30s));
  REQUIRE(cluster.run_until(
      [&] { return cluster.view(1).members.size() == 4 && cluster.view(2).members.size() == 4; },
      10s));
}

TEST_CASE("a node has left once its disk holds it, not before") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  add_three(cluster, schema);
  cluster.stick_disk(2, true);
  cluster.act(2, [](Node& node, Instant local) { CHECK_FALSE(node.leave(local)); });
  cluster.run_for(30s);
  CHECK(cluster.node(2).phase() == Phase::leaving);
  CHECK(cluster.view(2).waiting_for.find("disk") != std::string::npos);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::alive);
  cluster.stick_disk(2, false);
  REQUIRE(cluster.run_until([&] { return cluster.node(2).phase() == Phase::left; }, 1s));
  CHECK(cluster.disk(2).left);
  REQUIRE(cluster.run_until(
      [&] { return member(cluster.view(0), cluster.id(2))->record.state == MemberState::left; },
      5s));

  cluster.slow_disk(2, 8s);
  const std::uint64_t known = incarnation_at(cluster, 0, 2);
  cluster.act(2, [](Node& node, Instant local) { CHECK_FALSE(node.join({}, local)); });
  cluster.run_for(7s);
  CHECK(incarnation_at(cluster, 0, 2) == known);
  REQUIRE(cluster.run_until(
      [&] { return member(cluster.view(0), cluster.id(2))->record.state == MemberState::alive; },
      30s));
  CHECK_FALSE(cluster.disk(2).left);
}

TEST_CASE("of the states that come while one is written the newest is written next, and no other") {
  const Schema schema = schema_of({2000});
  struct Writes : Watcher {
    std::vector<NodeState> written;
    void persisted(std::size_t node, const NodeState&, const NodeState& after) override {
      if (node == 2) written.push_back(after);
    }
  } writes;
  VirtualCluster cluster(schema);
  add_three(cluster, schema);
  cluster.watch(writes);
  cluster.slow_disk(2, 4s);
  accuse(cluster, 2);
  cluster.run_for(1s);
  for (int i = 0; i < 4; ++i) accuse(cluster, 2);
  const std::uint64_t incarnation = cluster.view(2).incarnation;
  REQUIRE(cluster.run_until([&] { return writes.written.size() == 2; }, 20s));
  CHECK(writes.written[0].incarnation == incarnation - 4 + DurableClaims::reserve);
  CHECK(writes.written[1].incarnation == incarnation + DurableClaims::reserve);
}

TEST_CASE(
    "a node that has joined one cluster, with a disk that does not hold it yet, joins no other") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) {
    NodeOptions founder = with_model(schema, i);
    founder.seeds.clear();
    cluster.add(founder);
  }
  const std::size_t joiner = cluster.add_off(NodeOptions{.seeds = {0}});
  cluster.power_on(joiner);
  REQUIRE(cluster.run_until([&] { return cluster.disk(joiner).incarnation > 0; }, 10s));
  cluster.stick_disk(joiner, true);
  REQUIRE(cluster.run_until([&] { return !cluster.view(joiner).links.empty(); }, 10s));
  REQUIRE(cluster.disk(joiner).cluster == ClusterId{});
  const auto dial_the_other = [&] {
    cluster.act(joiner, [](Node& node, Instant now) {
      CHECK_FALSE(node.join({VirtualCluster::endpoint(1)}, now));
    });
  };
  dial_the_other();
  cluster.run_for(20s);
  CHECK(member(cluster.view(1), cluster.id(joiner)) == nullptr);
  cluster.stick_disk(joiner, false);
  REQUIRE(cluster.run_until([&] { return cluster.disk(joiner).cluster != ClusterId{}; }, 10s));
  cluster.run_for(100ms);
  dial_the_other();
  CHECK(cluster.run_until(
      [&] { return has_refusal(cluster.view(joiner), "cluster-mismatch", true); }, 120s));
  CHECK(member(cluster.view(0), cluster.id(joiner))->linked);
}
