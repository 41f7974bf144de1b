// Sessions and neighbours: which session is whose, what outlives it, and how much is kept.
#include "core/node/peers.h"

#include <doctest/doctest.h>

#include "tests/fuzz/link_script.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr NodeId own{1}, peer{2};

Instant at(Duration time) { return Instant{1000s} + time; }

using Session = Peers::Session;
using Neighbour = Peers::Neighbour;

struct House {
  Session& open(std::uint64_t id) { return peers.open(SessionId{id}, true, {"box", 1}); }
  Session& link(std::uint64_t id, NodeId who) {
    Session& session = open(id);
    session.theirs = Hello{.id = who, .address = {"box", static_cast<std::uint16_t>(id)}};
    peers.establish(session);
    peers.check_invariants();
    return session;
  }
  // The neighbour's link, with replicas.
  Link& exchange(NodeId who) {
    Neighbour& neighbour = *peers.neighbour(who);
    neighbour.link = std::make_unique<Link>(own, who, schema, policy, nullptr);
    const auto ready = [&](std::uint64_t nonce) {
      return Ready{.schema = schema.hash(), .has_model = true, .nonce = nonce};
    };
    (void)neighbour.link->open(ready(1), ready(2), protocol_version);
    REQUIRE(neighbour.link->has_replicas());
    return *neighbour.link;
  }
  void close(std::uint64_t id, Duration time) {
    CHECK(peers.close(SessionId{id}, at(time)));
    peers.check_invariants();
  }

  Schema schema = script_schema();
  ExchangePolicy policy;
  Peers peers;
};

}  // namespace

TEST_CASE("a session belongs to nobody until it is established, then to one neighbour") {
  House house;
  Session& session = house.open(10);
  house.peers.check_invariants();
  CHECK(house.peers.established() == 0);
  CHECK(house.peers.session_of(peer) == nullptr);
  session.theirs = Hello{.id = peer, .address = {"box", 7}};
  house.peers.establish(session);
  house.peers.check_invariants();
  CHECK(house.peers.established() == 1);
  CHECK(house.peers.session_of(peer) == &session);
  CHECK(house.peers.linked_addresses() == std::set<Endpoint>{{"box", 7}});
  CHECK(house.peers.established_ids() == std::vector{SessionId{10}});
}

TEST_CASE("a neighbour's state outlives its session") {
  House house;
  house.link(10, peer);
  house.peers.neighbour(peer)->refusals = 3;
  house.close(10, 5s);
  CHECK_FALSE(house.peers.close(SessionId{10}, at(5s)));
  CHECK(house.peers.session_of(peer) == nullptr);
  REQUIRE(house.peers.neighbour(peer) != nullptr);
  CHECK(house.peers.neighbour(peer)->down_since == at(5s));
  house.link(11, peer);
  CHECK(house.peers.neighbour(peer)->refusals == 3);
}

TEST_CASE("a session that ends without a handshake leaves nothing behind") {
  House house;
  Session& session = house.open(10);
  session.theirs = Hello{.id = peer};
  house.close(10, 1s);
  CHECK(house.peers.neighbour(peer) == nullptr);
}

TEST_CASE("a member may be linked if it is neither linked nor in quarantine") {
  House house;
  CHECK(house.peers.may_link(peer, at(0s)));
  house.link(10, peer);
  CHECK_FALSE(house.peers.may_link(peer, at(0s)));
  house.peers.neighbour(peer)->quarantined_until = at(10s);
  house.close(10, 0s);
  CHECK_FALSE(house.peers.may_link(peer, at(9s)));
  CHECK(house.peers.may_link(peer, at(10s)));
}

TEST_CASE("sessions are full at their maximum") {
  House house;
  for (std::uint64_t i = 0; i < Peers::sessions_max; ++i) {
    CHECK_FALSE(house.peers.is_full());
    house.open(i + 1);
  }
  CHECK(house.peers.is_full());
  CHECK(house.peers.ids().size() == Peers::sessions_max);
}

TEST_CASE("of more neighbours than the maximum, the one that is down for longest is forgotten") {
  House house;
  house.link(1, NodeId{100});  // stays up
  for (std::uint64_t i = 1; i < Peers::neighbours_max + 10; ++i) {
    house.link(1 + i, NodeId{100 + i});
    CHECK(house.peers.close(SessionId{1 + i}, at(std::chrono::seconds(i))));
  }
  house.peers.check_invariants();
  CHECK(house.peers.neighbours().size() == Peers::neighbours_max);
  CHECK(house.peers.neighbour(NodeId{100}) != nullptr);
  CHECK(house.peers.neighbour(NodeId{101}) == nullptr);
  CHECK(house.peers.neighbour(NodeId{100 + Peers::neighbours_max + 9}) != nullptr);
}

TEST_CASE("replicas are kept of the neighbours that went down last") {
  House house;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    house.link(i, NodeId{100 + i});
    house.exchange(NodeId{100 + i}).close();
    if (i < 4) house.close(i, std::chrono::seconds(i));
  }
  house.peers.bound_replicas(2);
  CHECK_FALSE(house.peers.neighbour(NodeId{101})->link->has_replicas());
  CHECK(house.peers.neighbour(NodeId{102})->link->has_replicas());
  CHECK(house.peers.neighbour(NodeId{103})->link->has_replicas());
  CHECK(house.peers.neighbour(NodeId{104})->link->has_replicas());  // is linked
}

TEST_CASE("the link of a neighbour that does not come back is given up after a while") {
  House house;
  house.link(1, peer);
  house.exchange(peer).close();
  house.peers.forget_links(at(1h));
  CHECK(house.peers.neighbour(peer)->link);
  house.close(1, 0s);
  house.peers.forget_links(at(Peers::link_memory));
  CHECK(house.peers.neighbour(peer)->link);
  house.peers.forget_links(at(Peers::link_memory + 1ms));
  CHECK_FALSE(house.peers.neighbour(peer)->link);
}
