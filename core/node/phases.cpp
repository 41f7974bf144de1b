// The phases of a node, the operator's commands, and the final model.
#include <algorithm>
#include <utility>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

// Where nothing is against it.
const char* why_final_model(bool exchanges, std::size_t others) {
  if (!exchanges) return "the exchange is off, so the model is this node's own";
  if (others == 0) return "no other member is alive whose model could differ";
  return "the models agree";
}

}  // namespace

bool Conductor::set_phase(Phase to, const std::string& why) {
  const Phase from = phase();
  if (!life_.enter(to)) return false;
  if (to == Phase::finishing) state_.paused = false;
  if (life_.is_training() && (from == Phase::paused || from == Phase::waiting_for_trainer))
    weight_.go_on(round_.taken());
  log(Level::info, std::string("event=phase from=") + to_string(from) +
                       " to=" + to_string(phase()) + " why=" + log_quoted(why));
  return true;
}

void Conductor::on_trainer(bool present, std::string what) {
  if (life_.trainer_is(present, std::move(what)))
    set_phase(Phase::training, present ? "a trainer is at work" : "no trainer is at work");
}

// With its first model, or another one.
void Conductor::enter_training(const std::string& why, Instant now) {
  claims_.end_trust();
  timers_.begin_early_words(now);
  set_phase(Phase::training, why);
  if (state_.paused) set_phase(Phase::paused, "by the operator, before");
}

void Conductor::begin_training(Instant now) {
  GOSSIPD_ASSERT(source_.has_model());
  if (source_.is_broken()) {
    source_.ask_for_checkpoint_again();  // an answer may have come while it was out
    set_phase(Phase::broken, "its model was no longer sound when it left");
    return;
  }
  weight_.join(round_.last().step, round_.taken(), directory_.entries().size() <= 1);
  enter_training(peers_.established() > 0 ? "linked to the cluster" : "alone", now);
  check_progress(now);
  if (round_.is_resting()) hand_out(round_.begin(steps_allowed()));
}

// The models are one when every member that is not dead or gone has finished stepping and says that
// its consensus distance is below the bound.
std::string Conductor::why_no_final_model() const {
  if (!config_.exchange.enabled) return "";
  const double bound = config_.exchange.consensus_bound;
  const bool unlinked = open_links() == 0 && directory_.alive_others() > 0;
  // One that has a session and no model to compare yet is linked, as an operator sees it.
  const auto counts = [&](NodeId id) {
    return id != state_.id && (!unlinked || peers_.session_of(id) != nullptr);
  };
  for (const auto& [id, entry] : directory_.entries())
    if (std::string why = counts(id) ? why_not_at_end(entry) : ""; !why.empty()) return why;
  if (!unlinked && own_consensus_distance() >= bound)
    return "a neighbour's model is " + std::to_string(own_consensus_distance()) + " away";
  if (!round_.has_said_all(round_links(), directory_))
    return "its own or a neighbour's last steps have not been said yet";
  for (const auto& [id, entry] : directory_.entries())
    if (counts(id) && entry.record.state == MemberState::alive &&
        entry.record.consensus_distance >= bound)
      return entry.record.name + " says that its model differs from a neighbour's";
  return unlinked ? "no other member is linked" : "";
}

void Conductor::check_finish(Instant now) {
  const bool stale = life_.is(Phase::finished) && final_.is_stale(config_.exchange.consensus_bound);
  if (!life_.is(Phase::finishing) && !stale) return;
  const std::string why_not = why_no_final_model();
  if (stale) return renew_final(why_not.empty(), now);
  if (!why_not.empty() && !life_.is_overdue(now)) return;
  if (!why_not.empty())
    log(Level::warning,
        "event=final-apart why=" + log_quoted(why_not) +
            " hint=\"the exchange goes on; `final` is written again once the models are one\"");
  set_phase(Phase::finished,
            why_not.empty() ? why_final_model(config_.exchange.enabled, directory_.alive_others())
                            : "time for the final exchange is up");
  weight_.agree();
  final_.want();
  persistence_.request();
  if (round_.is_waiting()) write_final();
}

// The model has moved on, mostly because somebody has come back with another one.
void Conductor::renew_final(bool agreed, Instant now) {
  const std::string moved = std::to_string(final_.moved_since_written());
  if (agreed) {
    final_.want();
    log(Level::info, "event=final-renewed moved=" + moved);
    if (round_.is_waiting()) write_final();  // otherwise at the next snapshot
    return;
  }
  life_.finish_by(now + config_.membership.finish_cap);
  round_.tell_again();
  round_.stand_still(Duration{}, now);
  set_phase(Phase::finishing,
            "the model has moved by " + moved + " of its norm since `final` was written");
}

void Conductor::write_final() {
  final_.written();
  emit(CheckpointEffect{true});
}

std::optional<Error> Conductor::join(std::vector<Endpoint> seeds, Instant now) {
  if (life_.is_stopping() || life_.is(Phase::leaving))
    return Error{"busy", "this node is leaving or stopping; try again when it has"};
  if (!life_.is(Phase::left) && seeds.empty())
    return Error{"already-member", "this node has not left; name a seed to ask it as well"};
  if (auto refused = dialer_.add_seeds(seeds)) return refused;
  dialer_.forgive(now);
  if (life_.is(Phase::left)) {
    state_.left = false;
    raise_incarnation(state_.incarnation);
    set_phase(Phase::joining, "by the operator");
    life_.wait_for("a member to answer");
    life_.look_until(now + config_.membership.isolation_grace);
    if (source_.has_model() && directory_.alive_others() == 0 && dialer_.seeds().empty())
      begin_training(now);
  }
  // A named seed is asked at once, also by a node that has neighbours: the operator wants to know
  // what it says.
  for (const Endpoint& seed : seeds)
    if (may_dial(seed, now)) dial(seed, NodeId{}, now);
  timers_.by(Duty::overlay, now);
  return std::nullopt;
}

void Conductor::set_seeds(const std::vector<Endpoint>& seeds, Instant now) {
  dialer_.replace_seeds(seeds);
  timers_.by(Duty::overlay, now);
}

std::optional<Error> Conductor::leave(Instant now) {
  if (life_.is_going())
    return Error{"already-left", "this node has left already; `gossipctl join` brings it back"};
  if (auto error = why_not_during_change()) return error;
  set_phase(Phase::leaving, "by the operator");
  std::map<NodeId, std::uint64_t> spoken;
  if (source_.has_model())
    for (const auto& [id, link] : open_links_by_peer()) spoken[id] = link->counters().turns_spoken;
  life_.leave_by(now + config_.membership.leave_flush, std::move(spoken));
  return std::nullopt;
}

// Done when every link has had one more exchange and the words are out, or when time is up.
void Conductor::check_leave(Instant now) {
  if (!life_.is(Phase::leaving) || state_.left) return;  // the second: it waits for the disk
  const ModelAssembly::Links links = open_links_by_peer();
  const bool said = life_.has_said_all([&](NodeId peer, std::uint64_t turns) {
    const auto link = links.find(peer);
    const Session* session = peers_.session_of(peer);
    return link == links.end() || session == nullptr ||
           (link->second->counters().turns_spoken > turns && !link->second->awaits_answer() &&
            session->bulk_outstanding == 0);
  });
  if (said || life_.is_overdue(now)) finish_leave(now);
}

// Leaving is a promise over restarts, so it holds when the disk knows it.
void Conductor::finish_leave(Instant now) {
  state_.left = true;
  persistence_.urge();
  if (durable_.left()) say_left(now);
}

// Its last words, so they go out before the sessions end.
void Conductor::say_left(Instant now) {
  set_phase(Phase::left, "by the operator");
  renew_own_record(now);
  gossip(now);
  for (auto& [id, session] : peers_.sessions())  // a silent one may hear this once it thaws
    if (session.established() && !detector_.hears(id, now))
      send(session, Members{{directory_.self()}, {}, {}});
  close_all("left", "this node leaves the cluster", now);
}

std::optional<Error> Conductor::pause() {
  if (life_.is(Phase::paused)) return std::nullopt;
  if (!life_.is_training() && !life_.is(Phase::waiting_for_trainer))
    return Error{"not-training",
                 std::string("nothing to pause: this node is ") + to_string(phase())};
  set_phase(Phase::paused, "by the operator");
  state_.paused = true;
  persist();
  return std::nullopt;
}

std::optional<Error> Conductor::resume() {
  if (life_.is_going())
    return Error{"left",
                 "this node has left its cluster: gossipctl join brings it back, then gossipctl "
                 "resume where it was paused before"};
  const bool was_to_pause = std::exchange(state_.paused, false);
  if (was_to_pause) persist();
  if (life_.is_training() || life_.is(Phase::waiting_for_trainer)) return std::nullopt;
  if (!life_.is(Phase::paused)) {
    if (was_to_pause) return std::nullopt;  // it would have paused once it trains
    return Error{"not-paused",
                 std::string("nothing to resume: this node is ") + to_string(phase())};
  }
  set_phase(Phase::training, "by the operator");
  return std::nullopt;
}

void Conductor::stop(Instant now) {
  if (life_.is_stopping()) return;
  if (life_.is(Phase::leaving)) state_.left = true;  // as was promised, over this restart too
  life_.stop();
  renew_own_record(now);
  gossip(now);
  persist();
  close_all("restarting", "this node restarts", now);
}

}  // namespace gossipd
