// core/node/round_link.h - a link and its line, as a round of exchanges sees them.
#pragma once

#include <algorithm>
#include <span>

#include "core/exchange/link.h"

namespace gossipd {

struct RoundLink {
  NodeId peer{};
  Link& link;
  bool connected = false;        // a session carries it
  std::size_t outstanding = 0;   // bytes on that session's way out
  double rtt_seconds = 0;        // of that session, smoothed
  double least_rtt_seconds = 0;  // the shortest round trip: the line without queues
};

// Null: the peer has none.
[[nodiscard]] inline RoundLink* find_link(std::span<RoundLink> links, NodeId peer) {
  const auto found = std::ranges::find(links, peer, &RoundLink::peer);
  return found == links.end() ? nullptr : &*found;
}
[[nodiscard]] std::size_t count_open(std::span<const RoundLink> links);

}  // namespace gossipd
