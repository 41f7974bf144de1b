// The overlay of links: which members are dialled, and links that are given up for others.
#include <algorithm>
#include <utility>

#include "core/node/conductor.h"

namespace gossipd {
bool Conductor::may_dial(const Endpoint& endpoint, Instant now) const {
  return may_say_hello() && dialer_.may_dial(endpoint, now);
}

void Conductor::dial(const Endpoint& endpoint, NodeId probed, Instant now) {
  dialer_.on_dial(endpoint, probed, random_, now);
  emit(DialEffect{endpoint});
}

std::size_t Conductor::wanted_links() const {
  return std::min<std::size_t>(config_.membership.links, directory_.alive_others());
}

// Members in this state that may be dialled now for a link.
std::vector<NodeId> Conductor::unlinked(MemberState state, Instant now) const {
  // A node that came back with another id answers at the old one's address.
  const std::set<Endpoint> taken = peers_.linked_addresses();
  std::vector<NodeId> ids;
  for (const auto& [id, entry] : directory_.entries())
    if (id != state_.id && entry.record.state == state && peers_.may_link(id, now) &&
        !taken.contains(entry.record.address) && may_dial(entry.record.address, now))
      ids.push_back(id);
  return ids;
}

void Conductor::look_after_overlay(Instant now) {
  dial_if_needed(now);
  if (life_.is_going()) return;
  probe_one(now);
  rotate_links(now);
}

// Takes those out that were met in an earlier run of this node, and not yet in this one.
std::vector<NodeId> Conductor::take_met_before(std::vector<NodeId>& ids) const {
  std::vector<NodeId> known;
  std::erase_if(ids, [&](NodeId id) {
    const bool met = directory_.find(id)->met_before;
    if (met) known.push_back(id);
    return met;
  });
  return known;
}

void Conductor::dial_if_needed(Instant now) {
  if (life_.is_going() || life_.is_stopping()) return;
  const std::size_t sessions = peers_.established();
  if (sessions == 0)
    for (const Endpoint& seed : dialer_.seeds())
      if (may_dial(seed, now)) dial(seed, NodeId{}, now);
  if (directory_.failed() > 0 && dialer_.failed_due(now)) dial_failed_member(now);
  const std::size_t wanted = wanted_links();
  if (sessions >= wanted) return;
  std::size_t dialling = dialer_.under_way();
  if (sessions + dialling >= wanted) return;
  std::vector<NodeId> candidates = unlinked(MemberState::alive, now);
  // After a restart, members that were invented while it lasted must not keep real ones waiting.
  std::vector<NodeId> known = take_met_before(candidates);
  while (sessions + dialling < wanted && !(known.empty() && candidates.empty())) {
    std::vector<NodeId>& from = known.empty() ? candidates : known;
    const std::size_t pick = random_.below(from.size());
    dial(directory_.find(from[pick])->record.address, NodeId{}, now);
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(pick));
    ++dialling;
  }
}

// One at a time, for ever: a partition heals by itself.
void Conductor::dial_failed_member(Instant now) {
  std::vector<NodeId> failed = unlinked(MemberState::failed, now);
  const bool found = !failed.empty();
  std::vector<NodeId> known = take_met_before(failed);
  // Every second dial, so that neither kind has to wait for the other.
  if (failed.empty() || (!known.empty() && random_.below(2) == 0)) failed = std::move(known);
  if (found)
    dial(directory_.find(failed[random_.below(failed.size())])->record.address, NodeId{}, now);
  dialer_.on_failed_looked(found, random_, now);
}

// Links of one draw would keep what a group of neighbours knows among them: now and then one is
// given up for another, so the overlay stays random. The new link opens first.
void Conductor::rotate_links(Instant now) {
  if (!dialer_.rotation_due(random_, now)) return;
  if (!life_.is_training() || peers_.established() < wanted_links()) return;
  const std::vector<NodeId> candidates = unlinked(MemberState::alive, now);
  if (candidates.empty()) return;
  dialer_.begin_rotation();
  dial(directory_.find(candidates[random_.below(candidates.size())])->record.address, NodeId{},
       now);
}

// Gives up only a link without an answer due, so that every transfer stays whole.
void Conductor::drop_rotated_link(const Session& fresh, Instant now) {
  if (!fresh.outbound || !dialer_.take_rotation() || peers_.established() <= wanted_links()) return;
  std::vector<SessionId> idle;
  for (const auto& [id, session] : peers_.sessions()) {
    if (!session.established() || id == fresh.id) continue;
    const Link* link = peers_.neighbour_of(session).link.get();
    if (link == nullptr || !link->is_open() ||
        (link->my_turn() && !link->owes_answer() && !link->speaking()))
      idle.push_back(id);
  }
  if (idle.empty()) return;
  Session& given_up = *peers_.find(idle[random_.below(idle.size())]);
  send(given_up, Bye{bye_rotated});
  close(given_up.id, "given up for a link to another member", now, true);
}

}  // namespace gossipd
