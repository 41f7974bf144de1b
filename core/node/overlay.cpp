// The overlay of links: which members are dialled, and links that are given up for others.
#include <algorithm>
#include <utility>

#include "core/membership/circle.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

// beyond those that it accepts, until it has given up as many others
constexpr std::size_t links_beyond_max = 2;

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
  shed_link(now);
}

// Linked to whoever comes next, all members are one cluster, however the other links are drawn.
void Conductor::dial_next_in_circle(Instant now) {
  if (life_.is_going() || life_.is_stopping() || needs_model()) return;
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

// Links other than `but` that may go: no answer is due on them, so every transfer stays whole, and
// they do not lead to a member beside this one in the circle.
std::vector<SessionId> Conductor::spare_links(SessionId but) const {
  std::vector<SessionId> spare;
  for (const auto& [id, session] : peers_.sessions()) {
    if (!session.established() || id == but) continue;
    const NodeId peer = session.theirs->id;
    const Link* link = peers_.neighbour(peer)->link.get();
    const bool is_idle = link == nullptr || (link->is_at_rest() && session.bulk_outstanding == 0);
    if (is_idle && !beside_in_circle(directory_, state_.id, peer)) spare.push_back(id);
  }
  return spare;
}

void Conductor::give_up_link(SessionId id, Instant now) {
  send(*peers_.find(id), Bye{bye_rotated});
  close(id, "given up for a link to another member", now, true);
}

void Conductor::drop_rotated_link(const Session& fresh, Instant now) {
  if (!fresh.outbound || !dialer_.take_rotation() || peers_.established() <= wanted_links()) return;
  const std::vector<SessionId> spare = spare_links(fresh.id);
  if (!spare.empty()) give_up_link(spare[random_.below(spare.size())], now);
}

// A node with all its links still lets in who comes beside it in the circle, and, once a tick, who
// has so few links that one of its neighbours would have more without the link that goes for it.
// Each time links are spread more evenly, so this comes to an end.
bool Conductor::admits_beyond_its_links(const Session& fresh, Instant now) {
  const Hello& hello = *fresh.theirs;
  const std::size_t most = config_.membership.accepted_links() + links_beyond_max;
  if (needs_model() || peers_.established() >= most) return false;
  if (fresh.outbound && dialer_.is_rotating()) return true;
  if (beside_in_circle(directory_, state_.id, hello.id)) return true;
  const auto has_more = [&](const auto& item) {
    const Session& session = item.second;
    return session.established() && session.links_told >= *hello.links + 2 &&
           !beside_in_circle(directory_, state_.id, session.theirs->id);
  };
  return hello.links && std::ranges::any_of(peers_.sessions(), has_more) && dialer_.room_due(now);
}

// Gives up the link whose other end has the most, when it is not busy.
void Conductor::shed_link(Instant now) {
  if (peers_.established() <= config_.membership.accepted_links()) return;
  const std::vector<SessionId> spare = spare_links(SessionId{});
  const auto links_of = [&](SessionId id) { return peers_.find(id)->links_told; };
  if (!spare.empty()) give_up_link(*std::ranges::max_element(spare, {}, links_of), now);
}

}  // namespace gossipd
