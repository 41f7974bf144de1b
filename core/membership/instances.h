// core/membership/instances.h - which process speaks under an id, and whether there are two.
//
// The problem: a copied state directory (a cloned disk, a virtual machine from a snapshot) makes
// two processes of one id. Each start of a process has an instance number: the incarnation it began
// with, then random bits, so the process that began earlier has the lower one. A restart is another
// instance, and the one before is never heard again. If an instance that was followed by another is
// heard again, and is alive, there are two: the lower one keeps the id, by every member's verdict.
// The caller makes sure of "alive" by a question that only a living process answers. Pure; core
// strand.
#pragma once

#include <deque>
#include <map>

#include "core/base/types.h"

namespace gossipd {

[[nodiscard]] std::uint64_t make_instance(std::uint64_t incarnation, std::uint64_t random);

class Instances {
 public:
  enum class Heard : std::uint8_t {
    alone,     // the only process of this id, as far as is known
    again,     // another one has followed it: ask whether it is alive, then call returned()
    outlived,  // of two that were alive it is the one that gives the id up
  };
  // A hello of `id`. 0: of a release that does not say, about which nothing is known.
  Heard hear(NodeId id, std::uint64_t instance);
  // It has answered. True: of the two it keeps the id, and the other gives it up.
  bool returned(NodeId id, std::uint64_t instance);
  [[nodiscard]] std::uint64_t current(NodeId id) const;
  // A later record of it names another address. True: it was there before, and then elsewhere.
  bool moved(NodeId id, const Endpoint& from, const Endpoint& to);
  // The last that it has left, but `here`.
  [[nodiscard]] Endpoint other_address(NodeId id, const Endpoint& here) const;
  // There were two of this id, and one of them has been told to give it up.
  [[nodiscard]] bool is_cloned(NodeId id) const;

  static constexpr std::size_t former_max = 8;  // of an id
  static constexpr std::size_t ids_max = 2048;

 private:
  struct Lives {
    std::uint64_t current = 0;
    std::deque<std::uint64_t> former;    // followed by others
    std::deque<std::uint64_t> outlived;  // alive together with another that keeps the id
    bool cloned = false;
    std::deque<Endpoint> left;  // addresses
  };
  Lives& of(NodeId id);

  std::map<NodeId, Lives> lives_;
};

}  // namespace gossipd
