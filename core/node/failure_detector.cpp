#include "core/node/failure_detector.h"

#include <algorithm>
#include <utility>

#include "core/base/backoff.h"
#include "core/wire/control.h"

namespace gossipd {

static_assert(FailureDetector::suspicions_max <= suspicions_per_message_max);

FailureDetector::FailureDetector(const MembershipPolicy& policy, Instant now)
    : policy_(policy), looked_at_(now) {}

// ---- time ---------------------------------------------------------------------------------------

FailureDetector::Attention FailureDetector::on_time(Instant now) {
  const Duration gap = now - std::exchange(looked_at_, now);
  if (now >= awareness_until_) awareness_ = 0;
  if (gap <= attention_max) return {};
  Attention attention{.deaf = gap - attention_max};
  for (auto& [id, session] : sessions_) {  // what came since the gap began needs no allowance
    session.last_byte = std::min(session.last_byte + attention.deaf, now);
    session.opened = std::min(session.opened + attention.deaf, now);
  }
  if (gap > policy_.suspect_after / 2) attention.stood_still = gap;
  if (gap > std::max(policy_.fail_after, policy_.suspect_after / 2))
    thawed_until_ = now + policy_.fail_after;
  return attention;
}

Directory::Timeouts FailureDetector::timeouts() const {
  return {policy_.suspect_after * (1 + awareness_), policy_.fail_after * (1 + awareness_)};
}

void FailureDetector::on_refuted(Instant now) {
  awareness_ = std::min(awareness_ + 1, awareness_max);
  awareness_until_ = now + policy_.fail_after;
}

// ---- sessions -----------------------------------------------------------------------------------

void FailureDetector::on_open(SessionId session, Instant now) {
  sessions_[session] = Session{.opened = now, .last_byte = now};
}

void FailureDetector::on_established(SessionId session, NodeId member) {
  sessions_.at(session).member = member;
}

void FailureDetector::on_sign_of_life(SessionId id, Instant now) {
  Session& session = sessions_.at(id);
  session.last_byte = now;
  session.accused = false;
}

void FailureDetector::on_end(SessionId session) { sessions_.erase(session); }

Instant FailureDetector::last_heard(SessionId session) const {
  return sessions_.at(session).last_byte;
}

FailureDetector::Verdicts FailureDetector::judge(const Directory& directory, Instant now) {
  const Directory::Timeouts limits = timeouts();
  Verdicts verdicts;
  for (auto& [id, session] : sessions_) {
    if (!session.member) {
      if (now - session.opened > policy_.handshake_timeout)
        verdicts.dead.push_back({id, "no handshake in time"});
      continue;
    }
    const Duration silence = now - session.last_byte;
    if (silence <= limits.suspect_after && silence <= limits.fail_after) continue;
    const Directory::Entry* entry = directory.find(*session.member);
    const bool given_up = silence > limits.suspect_after && entry != nullptr &&
                          entry->record.state == MemberState::failed;
    if (silence > limits.suspect_after && !std::exchange(session.accused, true))
      verdicts.silent.push_back({*session.member, session.last_byte});
    if (silence > limits.fail_after || given_up)
      verdicts.dead.push_back(
          {id, "silent for " + std::to_string(static_cast<int>(seconds(silence))) + " s"});
  }
  return verdicts;
}

bool FailureDetector::is_heard(const Session& session, Instant now) const {
  return session.member && now - session.last_byte <= policy_.suspect_after;
}

bool FailureDetector::hears(SessionId id, Instant now) const {
  return is_heard(sessions_.at(id), now);
}

bool FailureDetector::hears_anybody(Instant now) const {
  return std::ranges::any_of(sessions_,
                             [&](const auto& item) { return is_heard(item.second, now); });
}

bool FailureDetector::is_linked(NodeId member) const {
  return std::ranges::any_of(sessions_,
                             [&](const auto& item) { return item.second.member == member; });
}

// ---- members without a session ------------------------------------------------------------------

std::vector<FailureDetector::Silent> FailureDetector::missing_at(const Endpoint& address,
                                                                 NodeId but,
                                                                 const Directory& directory,
                                                                 Instant now) const {
  const Duration patience = timeouts().suspect_after;
  const NodeId self = directory.self().id;
  std::vector<Silent> missing;
  for (const auto& [id, entry] : directory.entries()) {
    if (entry.record.address != address || entry.record.state != MemberState::alive || id == self ||
        id == but)
      continue;
    const bool quiet = but != NodeId{} || now - entry.refreshed > patience;
    if (quiet && !is_linked(id)) missing.push_back({id, now - patience});
  }
  return missing;
}

std::vector<FailureDetector::Silent> FailureDetector::displaced(const std::set<Endpoint>& taken,
                                                                const Directory& directory,
                                                                Instant now) const {
  const Duration patience = timeouts().suspect_after;
  const NodeId self = directory.self().id;
  std::vector<Silent> displaced;
  for (const auto& [id, entry] : directory.entries()) {
    const Endpoint& address = entry.record.address;
    const bool nowhere = address.host.empty() || address.port == 0;
    if (id == self || entry.record.state != MemberState::alive || entry.accused_here ||
        !(nowhere || taken.contains(address)))
      continue;
    if (now - entry.refreshed > patience && !is_linked(id))
      displaced.push_back({id, now - patience});
  }
  return displaced;
}

bool FailureDetector::probe_due(Instant now, Random& random) {
  if (now < next_probe_ || policy_.probe == Duration{}) return false;
  next_probe_ = now + spread(policy_.probe, 0.25, random);
  return true;
}

// ---- suspicions ---------------------------------------------------------------------------------

void FailureDetector::hand_on(const Suspicion& suspicion) {
  if (to_tell_.size() < suspicions_max) to_tell_.push_back(suspicion);
}

void FailureDetector::check_invariants() const {
  GOSSIPD_ASSERT(awareness_ <= awareness_max && to_tell_.size() <= suspicions_max);
}

}  // namespace gossipd
