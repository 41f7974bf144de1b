// The overlay of links: which members are dialled, and links that are given up for others.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/membership/circle.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

// beyond those that it accepts, until it has given up as many others
constexpr std::size_t links_beyond_max = 2;
// So many links a node has at least for members that have no other, where it chose no number.
constexpr std::size_t lonely_links = 12;

}  // namespace

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

// Without those that are about to go: they would look like room for others.
std::uint32_t Conductor::links_told() const {
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(peers_.established(), config_.membership.accepted_links()));
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
  dial_next_in_circle(now);
  dial_if_needed(now);
  if (life_.is_going()) return;
  probe_one(now);
  rotate_links(now);
  end_rotation(now);
  shed_link(now);
}

// Linked to whoever comes next, all members are one cluster, however the other links are drawn. A
// joiner has its model brought first, but by somebody who has one.
void Conductor::dial_next_in_circle(Instant now) {
  if (life_.is_going() || life_.is_stopping() || (needs_model() && open_links() > 0)) return;
  if (config_.membership.accepted_links() < 2 || dialer_.under_way() > 0) return;
  if (peers_.established() == 0) return;  // seeds come first
  const NodeId next = next_in_circle(directory_, state_.id);
  if (next == NodeId{} || !peers_.may_link(next, now)) return;
  const Endpoint& address = directory_.find(next)->record.address;
  if (peers_.linked_addresses().contains(address) || !may_dial(address, now)) return;
  dial(address, NodeId{}, now);
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
  if (sessions > 0 && dialer_.lost_due(random_, now)) dial_lost_member(now);
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

// A forgotten member that has come back, or a seed of another part of this cluster.
void Conductor::dial_lost_member(Instant now) {
  std::set<Endpoint> members = peers_.linked_addresses();
  std::vector<Endpoint> lost;
  for (const auto& [id, entry] : directory_.entries())
    if (entry.record.state == MemberState::alive) members.insert(entry.record.address);
  for (const NodeId id : unlinked(MemberState::forgotten, now))
    lost.push_back(directory_.find(id)->record.address);
  std::ranges::copy_if(dialer_.seeds(), std::back_inserter(lost),
                       [&](const Endpoint& seed) { return may_dial(seed, now); });
  std::erase_if(lost, [&](const Endpoint& at) { return members.contains(at); });
  if (!lost.empty()) dial(lost[random_.below(lost.size())], NodeId{}, now);
}

// Links of one draw would keep what a group of neighbours knows among them: now and then one is
// given up for another, so the overlay stays random. The new link opens first.
void Conductor::rotate_links(Instant now) {
  if (!dialer_.rotation_due(random_, now)) return;
  if (!life_.is_training() || peers_.established() < wanted_links()) return;
  const std::vector<NodeId> candidates = unlinked(MemberState::alive, now);
  if (candidates.empty()) return;
  const Endpoint to = directory_.find(candidates[random_.below(candidates.size())])->record.address;
  dialer_.begin_rotation(to);
  dial(to, NodeId{}, now);
}

// The other end keeps another link, and is not beside this node in the circle.
bool Conductor::may_go(const Session& session) const {
  return session.established() && session.links_told >= 2 &&
         !beside_in_circle(directory_, state_.id, session.theirs->id);
}

// This end may end it now: every transfer stays whole. A link that waits for the other end's model
// brings nothing.
bool Conductor::may_end(const Session& session) const {
  const Link* link = peers_.neighbour(session.theirs->id)->link.get();
  const bool waits = link != nullptr && !link->is_open() && !session.ready_theirs;
  return session.bulk_outstanding == 0 && (link == nullptr || waits || link->is_at_rest());
}

void Conductor::give_up_link(SessionId id, Instant now) {
  send(*peers_.find(id), Bye{bye_rotated});
  close(id, "given up for a link to another member", now, true);
}

// Once the new link has brought an answer, so nothing is given up for one that is refused.
void Conductor::end_rotation(Instant now) {
  for (auto& [id, fresh] : peers_.sessions()) {
    if (!fresh.established() || !fresh.replaces || fresh.round_trip.smoothed_seconds() == 0)
      continue;
    std::vector<SessionId> spare;
    bool later = false;
    for (const auto& [other, session] : peers_.sessions())
      if (other != id && may_go(session)) {
        if (may_end(session)) spare.push_back(other);
        later = true;
      }
    if (spare.empty() && later) return;
    fresh.replaces = false;
    if (spare.empty() || peers_.established() <= wanted_links()) return;
    return give_up_link(spare[random_.below(spare.size())], now);
  }
}

// A node with all its links still lets in who comes beside it in the circle, who has no link at
// all, who has so few that one of its neighbours would have more without the link that goes for it,
// and who gives up another link for this one; of these one a tick. Each time links are spread more
// evenly, or no worse and as seldom as links are rotated, so this comes to an end.
bool Conductor::admits_beyond_its_links(const Session& fresh, Instant now) {
  const Hello& hello = *fresh.theirs;
  if (needs_model()) return false;
  const std::size_t links = peers_.established(),
                    most = config_.membership.accepted_links() + links_beyond_max;
  if (links < most && fresh.outbound && dialer_.is_rotating(fresh.remote)) return true;
  if (links < most && beside_in_circle(directory_, state_.id, hello.id)) return true;
  if (!hello.links) return false;
  const bool chose = config_.membership.links_max != 0;
  const bool lonely = *hello.links == 0 && links < (chose ? most : std::max(most, lonely_links));
  const auto has_more = [&](const auto& item) {
    return may_go(item.second) && item.second.links_told >= *hello.links + 2;
  };
  const bool evens = links < most && std::ranges::any_of(peers_.sessions(), has_more);
  const bool rotates = links < most && hello.rotates;
  return (lonely || evens || rotates) && dialer_.room_due(now);
}

// Of too many links that have proved themselves the one goes whose other end has the most: ended
// here, or by the other end if the next turn is that one's.
void Conductor::shed_link(Instant now) {
  if (!life_.is_training()) return;  // at rest a new link would move what has settled
  std::size_t kept = 0;
  std::vector<Session*> candidates;
  for (auto& [id, session] : peers_.sessions()) {
    if (!session.established()) continue;
    if (session.is_spare && may_go(session) && may_end(session)) return give_up_link(id, now);
    if (session.round_trip.smoothed_seconds() > 0 && !session.asked_to_go) ++kept;
    if (may_go(session) && !session.asked_to_go) candidates.push_back(&session);
  }
  if (kept <= config_.membership.accepted_links() || candidates.empty()) return;
  const auto links_of = [](const Session* session) { return session->links_told; };
  const std::uint32_t most = links_of(std::ranges::max(candidates, {}, links_of));
  std::erase_if(candidates, [&](const Session* session) { return links_of(session) < most; });
  const auto now_free = std::ranges::find_if(candidates, [&](auto* s) { return may_end(*s); });
  if (now_free != candidates.end()) return give_up_link((*now_free)->id, now);
  for (Session* session : candidates) {
    const Link* link = peers_.neighbour(session->theirs->id)->link.get();
    if (link == nullptr || link->my_turn()) continue;  // soon
    session->asked_to_go = true;
    return send(*session, Spare{});
  }
}

}  // namespace gossipd
