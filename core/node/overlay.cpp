// Who to talk to: which members are dialled, and links that are given up for others.
#include <algorithm>
#include <utility>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr Duration failed_dial_period = std::chrono::seconds(10);
constexpr Duration failed_look_period = std::chrono::seconds(1);  // while none may be dialled

}  // namespace

bool NodeImpl::may_dial(const Endpoint& endpoint, Instant now) const {
  if (endpoint.host.empty() || endpoint.port == 0 || !may_say_hello()) return false;
  if (!dial_budget_.admits(endpoint, now)) return false;
  const auto found = dials_.find(endpoint);
  return found == dials_.end() ||
         (!found->second.in_flight && now >= found->second.self_until && now >= found->second.next);
}

void NodeImpl::dial(const Endpoint& endpoint, Instant now) {
  bound_dials(now);
  dial_budget_.spend(endpoint, now);
  DialState& state = dials_[endpoint];
  state.in_flight = true;
  const MembershipPolicy& policy = config_.membership;
  const Duration backoff =
      std::min(policy.redial_max, policy.redial_min * (1u << std::min(state.failures, 10u)));
  state.next = now + from_seconds(seconds(backoff) * (0.75 + 0.5 * random_.uniform()));
  emit(DialEffect{endpoint});
}

std::size_t NodeImpl::wanted_links() const {
  return std::min<std::size_t>(config_.membership.links, directory_.alive_others());
}

// Living members without a session to here that may be dialled now.
std::vector<NodeId> NodeImpl::unlinked(Instant now) const {
  // a node that came back with another id answers at the old one's address
  std::set<Endpoint> taken;
  for (const auto& [id, session] : sessions_)
    if (session.established) taken.insert(session.theirs->address);
  std::vector<NodeId> ids;
  for (const auto& [id, entry] : directory_.entries()) {
    if (id == state_.id || entry.record.state != MemberState::alive) continue;
    const auto neighbour = neighbours_.find(id);
    if (neighbour != neighbours_.end() &&
        (neighbour->second.session != SessionId{} || now < neighbour->second.quarantined_until))
      continue;
    if (!taken.contains(entry.record.address) && may_dial(entry.record.address, now))
      ids.push_back(id);
  }
  return ids;
}

void NodeImpl::dial_if_needed(Instant now) {
  if (life_.is_going() || life_.is_stopping()) return;
  const std::size_t sessions = established_sessions();
  if (sessions == 0)
    for (const Endpoint& seed : config_.seeds)
      if (may_dial(seed, now)) dial(seed, now);
  if (directory_.failed() > 0 && now >= next_failed_dial_) dial_failed_members(now);
  const std::size_t wanted = wanted_links();
  if (sessions >= wanted) return;
  std::size_t dialling = 0;
  for (const auto& [endpoint, state] : dials_)
    dialling += state.in_flight && state.probed == NodeId{} ? 1 : 0;
  if (sessions + dialling >= wanted) return;
  std::vector<NodeId> candidates = unlinked(now);
  while (sessions + dialling < wanted && !candidates.empty()) {
    const std::size_t pick = random_.below(candidates.size());
    dial(directory_.find(candidates[pick])->record.address, now);
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(pick));
    ++dialling;
  }
}

// Members that failed are asked again for ever, one at a time: a partition heals by itself.
void NodeImpl::dial_failed_members(Instant now) {
  std::set<Endpoint> taken;
  for (const auto& [id, session] : sessions_)
    if (session.established) taken.insert(session.theirs->address);
  std::vector<Endpoint> failed;
  for (const auto& [id, entry] : directory_.entries())
    if (entry.record.state == MemberState::failed && !taken.contains(entry.record.address) &&
        may_dial(entry.record.address, now))
      if (const auto neighbour = neighbours_.find(id);
          neighbour == neighbours_.end() ||
          (neighbour->second.session == SessionId{} && now >= neighbour->second.quarantined_until))
        failed.push_back(entry.record.address);
  next_failed_dial_ = now + failed_look_period;
  if (failed.empty()) return;
  dial(failed[random_.below(failed.size())], now);
  next_failed_dial_ = now + from_seconds(seconds(failed_dial_period) * (0.5 + random_.uniform()));
}

// Links of one draw would keep what a group of neighbours knows among them: now and then one is
// given up for another, so the overlay stays random. The new link opens first.
void NodeImpl::rotate_links(Instant now) {
  if (config_.membership.rotate == Duration{} || now < next_rotation_) return;
  const bool first = next_rotation_ == Instant{};
  next_rotation_ =
      now + from_seconds(seconds(config_.membership.rotate) * (0.75 + 0.5 * random_.uniform()));
  if (first || !life_.is_training() || established_sessions() < wanted_links()) return;
  const std::vector<NodeId> candidates = unlinked(now);
  if (candidates.empty()) return;
  rotating_ = true;
  dial(directory_.find(candidates[random_.below(candidates.size())])->record.address, now);
}

// Only a link on which nobody owes an answer is given up: a transfer stays whole.
void NodeImpl::drop_rotated_link(const Session& fresh, Instant now) {
  if (!fresh.outbound || !std::exchange(rotating_, false) ||
      established_sessions() <= wanted_links())
    return;
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (!session.established || id == fresh.id) continue;
    const auto neighbour = neighbours_.find(session.theirs->id);
    const Link* link = neighbour == neighbours_.end() ? nullptr : neighbour->second.link.get();
    if (link == nullptr || !link->is_open() ||
        (link->my_turn() && !link->owes_answer() && !link->speaking()))
      idle.push_back(id);
  }
  if (idle.empty()) return;
  Session& given_up = sessions_.at(idle[random_.below(idle.size())]);
  send(given_up, Bye{bye_rotated});
  close(given_up.id, "given up for a link to another member", now, true);
}

}  // namespace gossipd
