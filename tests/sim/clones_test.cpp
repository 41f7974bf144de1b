// Two processes with one id, and connections that come back to the node that made them.
#include "core/wire/control.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

std::size_t clones_named(const VirtualCluster& cluster) {
  std::size_t lines = 0;
  for (std::size_t i = 0; i < cluster.size(); ++i)
    lines += times_logged(cluster, i, "event=cloned");
  return lines;
}

// A node that is off, on a copy of what is on the disk of `original`.
std::size_t add_copy(VirtualCluster& cluster, std::size_t original, NodeOptions options) {
  const std::size_t copy = cluster.add_off(std::move(options));
  cluster.write_checkpoint(original);
  cluster.whole_disk(copy) = cluster.whole_disk(original);
  return copy;
}

bool all_know(const VirtualCluster& cluster, std::size_t members) {
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    std::size_t alive = 0;
    for (const MemberView& m : cluster.view(i).members)
      alive += m.record.state == MemberState::alive ? 1 : 0;
    if (alive != members) return false;
  }
  return true;
}

// A host whose sessions say hello as whichever process of its id a test wants.
struct Processes : Stranger {
  explicit Processes(VirtualCluster& cluster)
      : cluster(cluster), host(cluster.add_stranger(*this)) {}
  void opened(SessionId id) override {
    if (!std::exchange(dials, false) && !answers_dials)
      return cluster.network().close(host, id, "nobody is here");
    last = id;
    const Hello hello{.protocol = protocol_oldest,
                      .cluster = cluster.disk(0).cluster,
                      .id = NodeId{0x2000},
                      .incarnation = incarnation,
                      .name = "processes",
                      .address = VirtualCluster::endpoint(host),
                      .leaving = leaving,
                      .newest = protocol_version,
                      .instance = instance};
    say(hello);
  }
  void heard(SessionId id, Lane lane, const Bytes& message) override {
    Result<Control> control = lane == Lane::control ? decode_control(message) : Error{};
    if (control && id == last) answers.push_back(std::move(*control));
  }
  void dial(std::uint64_t as) {
    instance = as;
    dials = true;
    answers.clear();
    cluster.network().dial(host, 0, VirtualCluster::endpoint(0));
    cluster.run_for(1s);
  }
  void hang_up() {
    cluster.network().close(host, last, "it is over");
    cluster.run_for(100ms);
  }
  void say(const Control& control) {
    (void)cluster.network().send(host, last, Lane::control,
                                 std::make_shared<const Bytes>(encode_control(control)));
  }
  template <typename Answer>
  [[nodiscard]] const Answer* heard_last() const {
    const Answer* found = nullptr;
    for (const Control& answer : answers)
      if (const auto* one = std::get_if<Answer>(&answer)) found = one;
    return found;
  }

  VirtualCluster& cluster;
  std::size_t host;
  std::uint64_t instance = 1;
  std::uint64_t incarnation = 5;
  bool leaving = false;
  bool dials = false;
  bool answers_dials = true;  // of the node
  SessionId last{};
  std::vector<Control> answers;  // to the last session
};

}  // namespace

TEST_CASE(
    "a second process of one id, of any incarnation, is let in beside the first one's session, so "
    "that both can be asked") {
  for (const std::uint64_t incarnation : {5u, 4u, 6u}) {
    CAPTURE(incarnation);
    VirtualCluster cluster(schema_of({200}));
    cluster.add(with_model(schema_of({200}), 0));
    Processes processes(cluster);
    processes.dial(7);
    REQUIRE(times_logged(cluster, 0, "event=link-up peer=0000000000002000") == 1);
    // The session that the lower id dialled outlives others of the same process.
    processes.hang_up();
    REQUIRE(cluster.run_until([&] { return times_logged(cluster, 0, "direction=out") == 1; }, 60s));
    processes.dial(7);
    REQUIRE(processes.heard_last<Refuse>() != nullptr);
    CHECK(processes.heard_last<Refuse>()->reason.code == "duplicate");
    processes.incarnation = incarnation;
    processes.dial(9);
    CHECK(processes.heard_last<Refuse>() == nullptr);
    CHECK(times_logged(cluster, 0, "event=link-up peer=0000000000002000") == 3);
  }
}

TEST_CASE(
    "a process that has left does not take another process of its id, linked or heard later, "
    "along") {
  VirtualCluster cluster(schema_of({200}));
  cluster.add(with_model(schema_of({200}), 0));
  Processes processes(cluster);
  processes.answers_dials = false;
  const auto state = [&] { return member(cluster.view(0), NodeId{0x2000})->record.state; };
  processes.dial(7);
  REQUIRE(member(cluster.view(0), NodeId{0x2000})->linked);
  processes.leaving = true;
  processes.dial(9);
  CHECK(state() != MemberState::left);
  CHECK(member(cluster.view(0), NodeId{0x2000})->linked);

  for (const std::uint64_t instance : {9u, 11u}) {
    processes.leaving = false;
    processes.dial(instance);
    processes.hang_up();
  }
  processes.leaving = true;
  processes.dial(9);
  REQUIRE_FALSE(member(cluster.view(0), NodeId{0x2000})->linked);
  CHECK(state() != MemberState::left);
  processes.dial(13);  // a restart of a node that has left
  CHECK(state() == MemberState::left);
}

TEST_CASE("a node that doubts whether a process lives answers the same question") {
  VirtualCluster cluster(schema_of({200}));
  cluster.add(with_model(schema_of({200}), 0));
  Processes processes(cluster);
  processes.answers_dials = false;
  for (const std::uint64_t instance : {7u, 9u, 7u}) {
    processes.hang_up();
    processes.dial(instance);
  }
  REQUIRE(processes.heard_last<Ping>() != nullptr);  // the process that was followed by another
  CHECK(processes.heard_last<Digest>() == nullptr);
  processes.say(Ping{.nonce = 12345});
  cluster.run_for(1s);
  REQUIRE(processes.heard_last<Pong>() != nullptr);
  CHECK(processes.heard_last<Pong>()->nonce == 12345);
}

TEST_CASE("two members that know only one that has left find each other through it") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  cluster.act(0, [](Node& node, Instant now) { CHECK_FALSE(node.leave(now)); });
  cluster.run_for(20s);
  for (std::size_t i = 0; i < 3; ++i) {
    cluster.write_checkpoint(i);
    cluster.kill(i);
    NodeState& state = cluster.whole_disk(i).state;
    std::erase_if(state.members, [&](const MemberRecord& record) {
      return record.id != cluster.id(i) && record.id != cluster.id(0);
    });
  }
  REQUIRE(cluster.whole_disk(0).state.left);
  for (std::size_t i = 0; i < 3; ++i) cluster.start_from_disk(i);
  CHECK(cluster.run_until(
      [&] {
        const NodeView of_one = cluster.view(1), of_two = cluster.view(2);
        const MemberView* other = member(of_one, cluster.id(2));
        return other != nullptr && other->linked && member(of_two, cluster.id(1))->linked;
      },
      120s));
}

TEST_CASE(
    "of a cloned disk's two nodes the copy takes a new id, both are named, and the others keep "
    "their links") {
  for (const std::size_t nodes : {2u, 4u, 9u}) {
    CAPTURE(nodes);
    const Schema schema = schema_of({200});
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < nodes; ++i) cluster.add(with_model(schema, i));
    cluster.run_for(60s);
    const NodeId original = cluster.id(1);
    const std::size_t copy = add_copy(cluster, 1, NodeOptions{});
    std::vector<std::size_t> ups(nodes);
    for (std::size_t i = 0; i < nodes; ++i)
      ups[i] = times_logged(cluster, i, "event=link-up peer=" + to_hex(original));
    const std::size_t between_others =
        nodes > 2 ? times_logged(cluster, 0, "event=link-down peer=" + to_hex(cluster.id(2))) : 0;
    cluster.start_from_disk(copy);
    REQUIRE(cluster.run_until([&] { return cluster.id(copy) != original; }, 300s));
    CHECK(cluster.id(1) == original);
    REQUIRE(cluster.run_until([&] { return all_know(cluster, nodes + 1); }, 60s));
    cluster.run_for(60s);
    CHECK(all_know(cluster, nodes + 1));
    CHECK(cluster.disk(copy).former_id == original);
    CHECK_FALSE(cluster.view(copy).cloned.empty());
    CHECK_FALSE(cluster.view(1).cloned.empty());
    CHECK(times_logged(cluster, 1, "event=cloned") > 0);
    CHECK(times_logged(cluster, copy, "event=cloned") > 0);
    std::size_t flagged = 0;
    for (std::size_t i = 0; i < nodes; ++i) {
      if (i != 1)
        CHECK(times_logged(cluster, i, "event=link-up peer=" + to_hex(original)) - ups[i] <= 8);
      flagged += member(cluster.view(i), original)->cloned ? 1 : 0;
    }
    CHECK(flagged >= 2);
    if (nodes > 2)
      CHECK(times_logged(cluster, 0, "event=link-down peer=" + to_hex(cluster.id(2))) ==
            between_others);
    // Every sample counts once at most.
    for (std::size_t i = 0; i < cluster.size(); ++i)
      cluster.act(i, [](Node& node, Instant now) { (void)node.pause(now); });
    cluster.run_for(30s);
    Samples trained = 0;
    for (std::size_t i = 0; i < cluster.size(); ++i) trained += cluster.samples(i);
    trained -= cluster.disk(copy).former_samples;
    for (std::size_t i = 0; i < cluster.size(); ++i) {
      CHECK(cluster.view(i).cluster_samples <= trained + cluster.disk(copy).former_samples / 4);
      CHECK(cluster.view(i).cluster_samples >= trained * 9 / 10);
    }
  }
}

TEST_CASE(
    "of a cloned disk's two nodes that both know only a member that has left, one takes a new id "
    "and finds the other") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  cluster.act(0, [](Node& node, Instant now) { CHECK_FALSE(node.leave(now)); });
  cluster.run_for(10s);
  const NodeId original = cluster.id(1);
  const std::size_t copy = add_copy(cluster, 1, with_model(schema, 1));
  cluster.start_from_disk(copy);
  REQUIRE(cluster.run_until([&] { return cluster.id(copy) != original; }, 300s));
  CHECK(cluster.id(1) == original);
  CHECK(cluster.run_until(
      [&] {
        const auto links = cluster.view(1).links;
        return std::ranges::any_of(links, [&](const LinkView& link) {
          return link.peer == cluster.id(copy) && link.state == "open";
        });
      },
      60s));
}

TEST_CASE(
    "a node that restarts, whose sessions are still half open, and one from an old backup are no "
    "clones") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 4; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  const Disk backup = cluster.whole_disk(1);
  cluster.run_for(20s);
  for (int i = 0; i < 10; ++i) {
    cluster.kill(1, VirtualCluster::Death::power_lost);
    cluster.run_for(from_seconds(0.3 * i));
    cluster.start_from_disk(1);
    cluster.run_for(from_seconds(5.0 / (i + 1)));
  }
  cluster.kill(1);
  cluster.whole_disk(1) = backup;
  cluster.start_from_disk(1);
  CHECK(cluster.run_until([&] { return all_know(cluster, 4); }, 60s));
  cluster.run_for(60s);
  CHECK(clones_named(cluster) == 0);
  CHECK(cluster.id(1) == backup.state.id);
}

TEST_CASE(
    "a dial that comes back is named, and the address is dialled again when it leads elsewhere") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  cluster.reflect(0, 1, true);
  cluster.reflect(1, 0, true);
  for (const auto& session : cluster.network().sessions())
    if (session.hosts[0] + session.hosts[1] == 1) cluster.network().reset(session, true, true);
  const auto linked = [&] {
    for (const LinkView& link : cluster.view(0).links)
      if (link.peer == cluster.id(1)) return link.state == "open";
    return false;
  };
  REQUIRE(cluster.run_until([&] { return has_refusal(cluster.view(0), "self", false); }, 60s));
  CHECK(times_logged(cluster, 0, "event=dial-reflected endpoint=node1:7610") == 1);
  cluster.run_for(60s);
  CHECK_FALSE(linked());
  cluster.reflect_nothing();
  CHECK(cluster.run_until(linked, 180s));
  CHECK(clones_named(cluster) == 0);
}

TEST_CASE(
    "join says at once that an address will not be dialled, and dials one that came back before") {
  const Schema schema = schema_of({200});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(5s);
  const auto join = [&](Endpoint where) {
    std::optional<Error> error;
    cluster.act(0, [&](Node& node, Instant now) { error = node.join({where}, now); });
    return error;
  };
  CHECK(join(VirtualCluster::endpoint(0))->code == "self");
  CHECK(join(Endpoint{"node1", 0})->code == "not-dialled");
  cluster.reflect(0, 1, true);
  CHECK_FALSE(join(VirtualCluster::endpoint(1)));
  REQUIRE(cluster.run_until([&] { return has_refusal(cluster.view(0), "self", false); }, 5s));
  cluster.reflect_nothing();
  std::size_t dials = 0;
  Hooks hooks;
  hooks.effects = [&](std::size_t node, std::vector<Effect>& effects) {
    for (const Effect& effect : effects)
      if (const auto* dial = std::get_if<DialEffect>(&effect))
        dials += node == 0 && dial->endpoint == VirtualCluster::endpoint(1) ? 1 : 0;
  };
  cluster.set_hooks(std::move(hooks));
  CHECK_FALSE(join(VirtualCluster::endpoint(1)));
  CHECK(dials == 1);
  cluster.run_for(1s);
  CHECK(times_logged(cluster, 0, "event=dial-reflected") == 1);
}
