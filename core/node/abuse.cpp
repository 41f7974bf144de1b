// What a peer may not do however often it tries: who is over a bound is refused, and rests.
#include <algorithm>
#include <utility>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr Duration quarantine_min = std::chrono::seconds(10);
constexpr std::uint32_t quarantine_doublings_max = 6;
// endpoints of which is known how dialling them went
constexpr std::size_t dials_max = 4 * members_max;
constexpr std::size_t neighbours_max = members_max;  // of which something is remembered

}  // namespace

// Every time for twice as long; what was said on the link is forgotten.
void NodeImpl::quarantine(Session& session, const std::string& why, Instant now) {
  Neighbour& neighbour = neighbours_[session.theirs->id];
  const Duration length =
      quarantine_min * (1u << std::min(neighbour.quarantines, quarantine_doublings_max));
  ++neighbour.quarantines;
  neighbour.refusals = 0;
  neighbour.quarantined_until = now + length;
  if (neighbour.link) neighbour.link->forget();
  const auto whole_seconds = std::to_string(static_cast<int>(seconds(length)));
  refuse(session, Error{"quarantined", why + "; this link rests for " + whole_seconds + " s"}, now);
}

void NodeImpl::on_flood(Session& session, const std::string& what, Instant now) {
  if (session.established) return quarantine(session, what, now);
  refuse(session, Error{"flood", what}, now);
}

bool NodeImpl::is_admitted(Session& session, const Control& message, std::size_t bytes,
                           Instant now) {
  ControlAllowance& allowance =
      session.established ? neighbours_[session.theirs->id].allowance : session.allowance;
  return allowance.admit(message, bytes, now);
}

// Of an endpoint that may be dialled again nothing need be known but that it failed before.
void NodeImpl::bound_dials(Instant now) {
  if (dials_.size() < dials_max) return;
  std::erase_if(dials_, [now](const auto& item) {
    return !item.second.in_flight && now >= item.second.next;
  });
}

// A link that is down keeps its replicas until the peer is back. Of many the one that is down for
// longest goes, so that who comes under ever new ids takes no memory.
void NodeImpl::bound_conversations() {
  std::vector<std::pair<Instant, NodeId>> down, remembered;
  for (const auto& [id, neighbour] : neighbours_) {
    if (neighbour.session != SessionId{}) continue;
    down.emplace_back(neighbour.down_since, id);
    if (neighbour.link && neighbour.link->has_replicas())
      remembered.emplace_back(neighbour.down_since, id);
  }
  const auto oldest_beyond = [](auto& list, std::size_t most) {
    std::sort(list.begin(), list.end());
    list.resize(list.size() - std::min(list.size(), most));
  };
  oldest_beyond(remembered, config_.membership.links_max);
  for (const auto& [since, id] : remembered) neighbours_.at(id).link->forget();
  oldest_beyond(down, neighbours_max);
  for (const auto& [since, id] : down) neighbours_.erase(id);
}

}  // namespace gossipd
