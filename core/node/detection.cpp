// Who lives: silence on links, probes of members without one, suspicions and how they are refuted.
#include <algorithm>
#include <utility>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

// replicas of a lost neighbour are kept so long
constexpr Duration link_memory = std::chrono::seconds(60);
// between two looks at the time, of a node that is well
constexpr Duration attention_max = std::chrono::milliseconds(500);
constexpr std::uint32_t awareness_max = 2;
constexpr std::size_t suspicions_max = suspicions_per_message_max;

}  // namespace

// A node that stood still, or is so busy that its timers are late, counts as the others' silence
// only the time in which it listened.
void NodeImpl::note_attention(Instant now) {
  const Duration gap = now - last_time_;
  last_time_ = now;
  if (now >= awareness_until_) awareness_ = 0;
  if (gap <= attention_max) return;
  const Duration deaf = gap - attention_max;
  directory_.forgive(deaf);
  for (auto& [id, session] : sessions_) session.last_byte += deaf, session.opened += deaf;
  if (gap <= config_.membership.suspect_after / 2) return;
  log(Level::warning, "event=stood-still seconds=" + std::to_string(seconds(gap)));
  ramping_ = true;
  joined_at_step_ = last_.step;
  if (gap > config_.membership.fail_after) thawed_until_ = now + config_.membership.fail_after;
}

// Lifeguard's local health: who is itself suspected by others waits longer before it does the same.
Directory::Timeouts NodeImpl::timeouts() const {
  return {config_.membership.suspect_after * (1 + awareness_),
          config_.membership.fail_after * (1 + awareness_)};
}

bool NodeImpl::hears_anybody(Instant now) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    return item.second.established &&
           now - item.second.last_byte <= config_.membership.suspect_after;
  });
}

void NodeImpl::detect_failures(Instant now) {
  const Directory::Timeouts limits = timeouts();
  std::vector<std::pair<SessionId, std::string>> dead;
  for (auto& [id, session] : sessions_) {
    const Duration silence = now - session.last_byte;
    if (!session.established) {
      if (now - session.opened > config_.membership.handshake_timeout)
        dead.emplace_back(id, "no handshake in time");
      continue;
    }
    const Directory::Entry* entry = directory_.find(session.theirs->id);
    const bool given_up = silence > limits.suspect_after && entry != nullptr &&
                          entry->record.state == MemberState::failed;
    if (silence > limits.suspect_after && !std::exchange(session.accused, true))
      accuse(session.theirs->id, session.last_byte, "silent", now);
    if (silence > limits.fail_after || given_up)
      dead.emplace_back(id,
                        "silent for " + std::to_string(static_cast<int>(seconds(silence))) + " s");
  }
  for (const auto& [id, reason] : dead) {
    const auto found = sessions_.find(id);
    const bool answered = !found->second.outbound || found->second.theirs;
    const Endpoint remote = found->second.remote;
    close(id, reason, now, true);
    if (!answered) accuse_all_at(remote, NodeId{}, "no answer", now);
  }

  bool changed = false;
  for (const NodeId id : directory_.overdue(limits, now))
    if (directory_.set_failed(id, !hears_anybody(now), now)) {
      log(Level::warning, "event=member-failed peer=" + to_hex(id) + " by=silence");
      changed = true;
    }
  for (auto& [id, neighbour] : neighbours_)
    if (neighbour.link && neighbour.session == SessionId{} &&
        now - neighbour.down_since > link_memory && stage_ <= RoundStage::waiting)
      neighbour.link.reset();
  if (changed) {
    persist_due_ = true;
    gossip(now);
    check_finish(now);
  }
}

// The suspect is told first; where the link to it is what failed, the others tell it.
void NodeImpl::accuse(NodeId member, Instant last_heard, const std::string& why, Instant now) {
  if (phase_ == Phase::left || phase_ == Phase::leaving || !directory_.accuse(member, last_heard))
    return;
  log(Level::info, "event=member-suspect peer=" + to_hex(member) + " reason=\"" + why + "\"");
  const Suspicion suspicion{member, directory_.find(member)->record.incarnation, state_.id};
  if (Session* session = session_of(member); session != nullptr && session->established)
    send(*session, Members{{}, {}, {suspicion}});
  if (suspicions_.size() < suspicions_max) suspicions_.push_back(suspicion);
  check_finish(now);
}

// Whoever is said to be at an address where somebody else answers, or nobody: then only of whom no
// word has come lately, since a node that can only dial out lives, too.
void NodeImpl::accuse_all_at(const Endpoint& address, NodeId but, const std::string& why,
                             Instant now) {
  std::vector<NodeId> there;
  for (const auto& [id, entry] : directory_.entries()) {
    if (entry.record.address != address || entry.record.state != MemberState::alive ||
        id == state_.id || id == but)
      continue;
    const bool quiet = but != NodeId{} || now - entry.refreshed > timeouts().suspect_after;
    if (quiet && session_of(id) == nullptr) there.push_back(id);
  }
  for (const NodeId id : there) accuse(id, now - timeouts().suspect_after, why, now);
}

// A former id of a node that lost its disk, which somebody still tells of: at its address another
// id is linked, so nobody would dial it.
void NodeImpl::accuse_displaced(Instant now) {
  std::set<Endpoint> taken{config_.advertise};
  for (const auto& [id, session] : sessions_)
    if (session.established) taken.insert(session.theirs->address);
  std::vector<NodeId> displaced;
  for (const auto& [id, entry] : directory_.entries()) {
    const Endpoint& address = entry.record.address;
    const bool nowhere = address.host.empty() || address.port == 0;  // nobody can look after it
    if (id == state_.id || entry.record.state != MemberState::alive || entry.accused_here ||
        !(nowhere || taken.contains(address)))
      continue;
    if (now - entry.refreshed > timeouts().suspect_after && session_of(id) == nullptr)
      displaced.push_back(id);
  }
  for (const NodeId id : displaced)
    accuse(id, now - timeouts().suspect_after, "nobody else is to be found at its address", now);
}

void NodeImpl::on_suspicions(const std::vector<Suspicion>& suspicions, Instant now) {
  for (const Suspicion& suspicion : suspicions) {
    if (suspicion.id == state_.id) {
      if (suspicion.incarnation >= state_.incarnation && phase_ != Phase::left)
        refute(suspicion.incarnation, now);
    } else if (directory_.merge(suspicion, now)) {
      if (Session* session = session_of(suspicion.id); session != nullptr && session->established)
        send(*session, Members{{}, {}, {suspicion}});
      if (suspicions_.size() < suspicions_max) suspicions_.push_back(suspicion);
    }
  }
}

void NodeImpl::refute(std::uint64_t incarnation, Instant now) {
  // Beyond what is reserved it is said when the disk holds it: on_persisted().
  if (!durable_.allows(std::max(state_.incarnation, incarnation) + 1)) {
    const std::uint64_t above = std::max(state_.incarnation, incarnation);
    if (above <= refute_above_) return;
    refute_above_ = above;
    return persist();
  }
  raise_incarnation(incarnation);
  awareness_ = std::min(awareness_ + 1, awareness_max);
  awareness_until_ = now + config_.membership.fail_after;
  renew_own_record(now);
  gossip(now);
}

// Who has no link is seen by nobody: each node looks after one of the others, drawn at random, now
// and then.
void NodeImpl::probe_one(Instant now) {
  if (now < next_probe_ || config_.membership.probe == Duration{}) return;
  next_probe_ =
      now + from_seconds(seconds(config_.membership.probe) * (0.75 + 0.5 * random_.uniform()));
  const std::vector<NodeId> candidates = unlinked(now);
  if (candidates.empty()) return;
  const NodeId chosen = candidates[random_.below(candidates.size())];
  const Endpoint endpoint = directory_.find(chosen)->record.address;
  dials_[endpoint].probed = chosen;
  dial(endpoint, now);
}

void NodeImpl::on_probe_answered(Session& session, Instant now) {
  const Hello hello = *session.theirs;
  const Endpoint endpoint = session.remote;
  close(session.id, "the probe has been answered", now, true);
  dials_.erase(endpoint);
  dial_budget_.answered(endpoint);
  learn_from(hello, now);
  directory_.heard_from(hello.id, now);
}

// Not the peer is at fault, so it is neither suspected nor refused for it.
void NodeImpl::name_bad_paths(Instant now) {
  for (auto& [id, neighbour] : neighbours_)
    if (neighbour.path.found_out(now))
      log(Level::warning, "event=large-packets-lost peer=" + to_hex(id) +
                              " reason=\"small packets arrive there, large ones do not: a tunnel "
                              "or router on the way has a smaller MTU and does not say so\""
                              " hint=\"lower the MTU of this interface, or set "
                              "net.ipv4.tcp_mtu_probing=1, on both ends\"");
}

}  // namespace gossipd
