// core/node/durable_claims.h - claims of a node about itself that its disk already holds.
//
// The problem: a node that died must not contradict itself when it comes back. It needs a higher
// incarnation than it ever published, the cluster that it named, and it must still be gone if it
// said that it had left. So its disk holds each of these before a peer hears it. A disk may take
// seconds, though, and the node must not stand still meanwhile. Hence two rules. What changes
// seldom (cluster, left) is published as the disk has it. Incarnations are reserved: the disk holds
// one that is `reserve` higher than the one in use, so a node refutes a suspicion at once however
// slow its disk is; a start uses the incarnation after the reserved one. Pure values.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/node.h"

namespace gossipd {

class DurableClaims {
 public:
  // How often a node can refute while its disk is stuck. Each start skips as many, and 64 bits
  // last.
  static constexpr std::uint64_t reserve = 8;

  // What is to be written for that, when nothing higher is awaited.
  [[nodiscard]] static std::uint64_t reserved_above(std::uint64_t in_use) {
    return in_use + std::min(reserve, std::numeric_limits<std::uint64_t>::max() - in_use);
  }

  // The name of the cluster of which a node with this state says it is a member.
  [[nodiscard]] static ClusterId met_as(const NodeState& state) {
    return state.meeting_in != ClusterId{} ? state.meeting_in : state.cluster;
  }

  // From now on the disk holds this state. Until the first call it holds nothing that may be said.
  void on_disk(const NodeState& state) {
    written_ = {true, state.incarnation, state.left, met_as(state)};
  }

  [[nodiscard]] bool allows(std::uint64_t incarnation) const {
    return written_.any && incarnation <= written_.incarnation;
  }
  // A peer claims the life `above` of this node, so the node is to say a higher one once the disk
  // allows it. True: that was not awaited yet, so the state is to be written again.
  bool await(std::uint64_t above) {
    if (above <= awaited_) return false;
    awaited_ = above;
    return true;
  }
  // Once the disk allows it: the life to go beyond.
  std::optional<std::uint64_t> take_awaited() {
    if (awaited_ == 0 || !allows(awaited_ + 1)) return std::nullopt;
    return std::exchange(awaited_, 0);
  }
  [[nodiscard]] std::uint64_t to_reserve(std::uint64_t in_use) const {
    return reserved_above(std::max(in_use, awaited_));
  }
  [[nodiscard]] bool left() const { return written_.any && written_.left; }
  // May be older than what the node knows. Then it says no hello: a member of yet another cluster
  // would take it in as a joiner.
  [[nodiscard]] ClusterId cluster() const { return written_.cluster; }

 private:
  struct Written {
    bool any = false;
    std::uint64_t incarnation = 0;
    bool left = false;
    ClusterId cluster{};
  };
  Written written_;
  std::uint64_t awaited_ = 0;  // the highest life claimed by others that is not refuted; 0: none
};

}  // namespace gossipd
