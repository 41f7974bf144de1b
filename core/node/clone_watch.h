// core/node/clone_watch.h - two processes under one id: another node's, or this one's.
//
// The problem: a copied state directory makes two processes of one id, and each would undo the
// other's claims. Other members notice first, since both processes dial them; they notify both, and
// the one that started later takes a new id. A single member must not take away another node's id,
// so a process gives its id up only if
//
//   two members say so (or all there are, if there are fewer),
//   or one goes on saying so for `lone_witness_after` while no other member is linked,
//   or it has met the other process itself.
//
// Not stopped: a liar with two ids, or one that says hello to the node as the other process,
// invents it, and the node takes a new id. An id younger than `between_ids` is kept, so that
// happens once in that time, and may happen again and again.
//
// Which process keeps an id is decided by instances.h. The node sends what is returned here and
// restarts under another id. Pure; one owner, the core strand.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "core/membership/instances.h"
#include "core/wire/control.h"

namespace gossipd {

class CloneWatch {
 public:
  // Members that must say so before this process gives its id up.
  static constexpr std::size_t witnesses_min = 2;
  static constexpr Duration between_ids = std::chrono::minutes(1);
  static constexpr Duration shown_for = std::chrono::minutes(10);
  // So long must one go on saying so where members that nobody reaches are thought to be alive.
  static constexpr Duration lone_witness_after = std::chrono::minutes(1);

  // `instance`: of this process; `former`: the id that it had to give up, or 0; `now`: its start.
  CloneWatch(NodeId self, std::uint64_t instance, NodeId former, Instant now);
  [[nodiscard]] std::uint64_t instance() const { return instance_; }

  // ---- other nodes ----
  [[nodiscard]] Instances::Heard hear(const Hello& hello) {
    return instances_.hear(hello.id, hello.instance);
  }
  // For a process that has been outlived. `keeper`: where the other one is, if that is known.
  [[nodiscard]] Cloned outlived(const Hello& hello, const Endpoint& keeper) const;
  struct Proof {
    bool two = false;    // processes live; else the one that spoke is alone and may dial again
    bool keeps = false;  // the one that spoke keeps the id
    Cloned notice;       // if there are two: for both
  };
  // A process that was followed by another one has shown that it lives. `here`: where it says it
  // is; `rival`: where the other process of its id is, or an empty host.
  [[nodiscard]] Proof on_proof_of_life(const Hello& hello, const Endpoint& here,
                                       const Endpoint& rival);
  // The member's record names another address. True: it has been there before, so two processes may
  // be taking turns, and the one there is to be asked who it is.
  [[nodiscard]] bool moved(NodeId id, const Endpoint& from, const Endpoint& to) {
    return instances_.moved(id, from, to);
  }

  // ---- this node ----
  // A hello came from another process of this node's id: the notice for it.
  [[nodiscard]] Cloned meet(const Hello& other, const Endpoint& own, const Endpoint& theirs) const;
  enum class Verdict : std::uint8_t {
    nothing,  // new, or to be done
    keeps,    // the other process is to take a new id; words() has changed
    gives_up  // this process is to take a new id
  };
  struct Company {
    std::size_t alive = 0;   // other members, as far as this node knows
    std::size_t linked = 0;  // of these but the one that says so
  };
  [[nodiscard]] Verdict on_notice(const Cloned& notice, NodeId said_by, Company others,
                                  Instant now);

  // This process may give its id up.
  [[nodiscard]] bool may_change_id(Instant now) const {
    return former_ == NodeId{} || now - started_ >= between_ids;
  }

  // Of this node's own id: within `shown_for` of the last notice, by when the other process has
  // taken a new one.
  [[nodiscard]] bool is_cloned(NodeId id, Instant now) const;
  // For the operator: which other process uses, or used, this node's id; empty: none.
  [[nodiscard]] const std::string& words() const { return words_; }

 private:
  NodeId self_;
  std::uint64_t instance_;
  NodeId former_;
  Instant started_;
  Instances instances_;         // of the other nodes
  std::set<NodeId> witnesses_;  // members that say that this process gives its id up; at most
                                // witnesses_min
  std::optional<Instant> lone_since_;  // when one said so while no other was linked
  std::optional<Instant> noticed_;     // that another process has this id and is to give it up
  std::string words_;
};

}  // namespace gossipd
