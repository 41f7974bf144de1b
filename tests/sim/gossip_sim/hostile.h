// tests/sim/gossip_sim/hostile.h - a hostile host that dials real nodes.
//
// Below TLS an attacker without the key can only end sessions, which the network's resets model.
// What remains are hosts that speak: a stranger to the protocol, a member of another cluster, and a
// member with the key that sends nonsense, or an endless turn, under its own id. A liar is also a
// member: it sends well-formed messages of every kind, each field at a boundary, about itself and
// others, except for others' samples, which the checkers count exactly (tests/sim/lies_test.cpp
// covers those).
#pragma once

#include <deque>

#include "core/wire/control.h"
#include "tests/sim/virtual_cluster.h"

namespace gossipd::sim {

class Hostile : public Stranger {
 public:
  enum class Kind : std::uint8_t { bytes, member, flood, endless, liar };

  Hostile(VirtualCluster& cluster, std::uint64_t seed, const Schema& schema)
      : cluster_(cluster), random_(seed), schema_(schema) {}
  void set_host(std::size_t host) { host_ = host; }
  [[nodiscard]] static bool is_own(NodeId id) { return raw(id) >> 32 == 0xbad; }

  void remember(Lane lane, const Bytes& message);  // real messages, for mutation
  void strike(Kind kind, std::size_t victim);
  void end();  // closes everything

  void opened(SessionId) override;
  void dial_failed() override;
  void closed(SessionId) override;
  void heard(SessionId, Lane, const Bytes&) override;

 private:
  struct Open {
    Kind kind;
    std::size_t victim;
    std::size_t left;           // messages left to send
    std::uint64_t own_id = 0;   // that it has used
    std::uint32_t turn = 0;     // of a turn without an end: its number; 0: not its turn yet
    std::size_t said = 0;       // messages of it
    bool says_nothing = false;  // in them
  };
  void say(SessionId, Lane, Bytes);
  void say_next(SessionId);
  void go_on(SessionId);
  [[nodiscard]] Bytes part_of_turn(const Open&) const;
  Bytes random_bytes();
  Bytes mutated(Bytes);
  Bytes hello(bool right_cluster, Open&);
  Bytes lie();
  MemberRecord lying_record();
  Members lying_members();
  std::uint64_t boundary();
  NodeId somebody();

  VirtualCluster& cluster_;
  Random random_;
  const Schema& schema_;
  std::size_t host_ = 0;
  std::deque<std::pair<Kind, std::size_t>> dialled_;  // answered in order
  std::map<SessionId, Open> sessions_;
  std::deque<std::pair<Lane, Bytes>> heard_;
};

}  // namespace gossipd::sim
