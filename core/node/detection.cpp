// The node's side of FailureDetector: its verdicts become closed sessions, suspicions and probes.
#include <algorithm>
#include <utility>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

// A model that is so many periods of exchange behind the others' is a newcomer's.
constexpr double periods_behind_max = 4;

}  // namespace

void Conductor::note_attention(Instant now) {
  const FailureDetector::Attention attention = detector_.on_time(now);
  if (attention.deaf == Duration{}) return;
  directory_.forgive(attention.deaf, now);
  if (attention.stood_still == Duration{}) return;
  log(Level::warning,
      "event=stood-still seconds=" + std::to_string(seconds(attention.stood_still)));
  const double period =
      static_cast<double>(config_.exchange.period_steps) * round_.last().step_seconds;
  if (seconds(attention.stood_still) > periods_behind_max * period)
    weight_.join(round_.last().step, round_.taken());
  else
    detector_.end_thaw();
}

// Somebody is heard again. A node that heard nobody may have been cut off itself.
void Conductor::void_lonely_verdicts(Instant now) {
  if (!detector_.hears_anybody(now)) directory_.doubt_lonely_verdicts(now);
}

void Conductor::detect_failures(Instant now) {
  const FailureDetector::Verdicts verdicts = detector_.judge(directory_, now);
  accuse(verdicts.silent, "silent");
  for (const auto& [id, reason] : verdicts.dead) {
    const Session& session = *peers_.find(id);
    const bool answered = !session.outbound || session.theirs;
    const Endpoint remote = session.remote;
    close(id, reason, now, true);
    if (answered) continue;
    note_found(remote, NodeId{}, "something listens there, but says no hello");
    accuse_all_at(remote, NodeId{}, "no answer", now);
  }

  bool changed = false;
  for (const NodeId id : directory_.overdue(detector_.timeouts(), now))
    if (directory_.set_failed(id, !detector_.hears_anybody(now), now)) {
      log(Level::warning, "event=member-failed peer=" + to_hex(id) + " by=silence");
      changed = true;
    }
  if (!round_.has_work()) peers_.forget_links(now);
  if (changed) {
    persistence_.request();
    gossip(now);
  }
}

void Conductor::accuse(NodeId member, Instant last_heard, const std::string& why) {
  if (life_.is_going() || !directory_.accuse(member, last_heard)) return;
  log(Level::info, "event=member-suspect peer=" + to_hex(member) + " reason=" + log_quoted(why));
  hand_on({member, directory_.find(member)->record.incarnation, state_.id});
}

void Conductor::accuse(const std::vector<FailureDetector::Silent>& members,
                       const std::string& why) {
  for (const auto& [member, last_heard] : members) accuse(member, last_heard, why);
}

// The suspect is told first; if the link to it is what failed, other members tell it.
void Conductor::hand_on(const Suspicion& suspicion) {
  if (Session* session = peers_.session_of(suspicion.id); session != nullptr)
    send(*session, Members{{}, {}, {suspicion}});
  detector_.hand_on(suspicion);
}

void Conductor::accuse_all_at(const Endpoint& address, NodeId but, const std::string& why,
                              Instant now) {
  accuse(detector_.missing_at(address, but, directory_, now), why);
}

void Conductor::accuse_displaced(Instant now) {
  std::set<Endpoint> taken = peers_.linked_addresses();
  taken.insert(config_.advertise);
  accuse(detector_.displaced(taken, directory_, now), "nobody else is to be found at its address");
}

void Conductor::on_suspicions(const std::vector<Suspicion>& suspicions, Instant now) {
  for (const Suspicion& suspicion : suspicions) {
    if (suspicion.id != state_.id) {
      if (directory_.merge(suspicion, now)) hand_on(suspicion);
    } else if (suspicion.incarnation >= state_.incarnation && !life_.is(Phase::left)) {
      refute(suspicion.incarnation, now);
    }
  }
}

// An incarnation beyond what is reserved is said when the disk holds it: on_persisted().
void Conductor::refute(std::uint64_t incarnation, Instant now) {
  const std::uint64_t above = std::max(state_.incarnation, incarnation);
  if (!durable_.allows(above + 1)) {
    if (durable_.await(above)) persistence_.urge();
    return;
  }
  raise_incarnation(incarnation);
  detector_.on_refuted(now);
}

// A member without a link is seen by nobody, so each node looks after a random one now and then.
void Conductor::probe_one(Instant now) {
  if (!detector_.probe_due(now, random_)) return;
  const std::vector<NodeId> candidates = unlinked(MemberState::alive, now);
  if (candidates.empty()) return;
  const NodeId chosen = candidates[random_.below(candidates.size())];
  dial(directory_.find(chosen)->record.address, chosen, now);
}

void Conductor::on_probe_answered(Session& session, Instant now) {
  const Hello hello = *session.theirs;
  const Endpoint endpoint = session.remote;
  close(session.id, "the probe has been answered", now, true);
  dialer_.on_probe_answered(endpoint);
  drop_life_beyond_refuting(hello);
  const Directory::Entry* known = directory_.find(hello.id);
  const bool lives_anew = known == nullptr || known->record.incarnation < hello.incarnation;
  learn_from(hello, now);
  directory_.heard_from(hello.id, now);
  if (!lives_anew) return;
  // A hello does not tell the phase, and neighbours tell their news once: what they said of a life
  // that was not believed then is asked for again.
  for (auto& [id, other] : peers_.sessions())
    if (other.established()) send(other, Digest{directory_.digest()});
}

// Not the peer is at fault, so it is neither suspected nor refused for it.
void Conductor::name_bad_paths(Instant now) {
  for (auto& [id, neighbour] : peers_.neighbours())
    if (neighbour.path.found_out(now))
      log(Level::warning, "event=large-packets-lost peer=" + to_hex(id) +
                              " reason=\"small packets arrive there, large ones do not: a tunnel "
                              "or router on the way has a smaller MTU and does not say so\""
                              " hint=\"lower the MTU of this interface, or set "
                              "net.ipv4.tcp_mtu_probing=1, on both ends\"");
}

}  // namespace gossipd
