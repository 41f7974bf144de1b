// Two processes under one id, and connections that come back to the node that made them.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

const char* const cloned_hint =
    "a state directory was copied; of the two processes the one that started later takes a new id "
    "by itself";

}  // namespace

// ---- reflections --------------------------------------------------------------------------------

void Conductor::on_reflected(Session& session, Instant now) {
  if (!session.outbound) return;
  const std::string reason =
      "the connection to " + to_string(session.remote) +
      " comes back to this node: an address of its own, a router that turns it "
      "round, or somebody on the way; it is tried again every " +
      std::to_string(static_cast<int>(seconds(Dialer::self_rest))) + " s";
  const bool is_news = dialer_.on_reflected(session.remote, reason, now);
  note_refusal(false, to_string(session.remote), Error{"self", reason}, now);
  if (!is_news) return;
  log(Level::warning, "event=dial-reflected endpoint=" + log_word(to_string(session.remote)) +
                          " reason=" + log_quoted(reason));
}

// ---- clones, as others see them -----------------------------------------------------------------

// The link to another process of its id, or null.
Conductor::Session* Conductor::rival_of(const Hello& hello) {
  Session* linked = peers_.session_of(hello.id);
  return linked != nullptr && linked->theirs->instance != hello.instance ? linked : nullptr;
}

// Where the other process of its id is: linked, or as its record says; an empty host: not known.
Endpoint Conductor::address_of_rival(const Hello& hello) {
  if (const Session* rival = rival_of(hello); rival != nullptr) return rival->theirs->address;
  const Directory::Entry* known = directory_.find(hello.id);
  const bool elsewhere = known != nullptr && known->record.address != hello.address;
  return elsewhere ? known->record.address : Endpoint{};
}

// False: the session waits for an answer, or has been refused.
bool Conductor::is_alone(Session& session, Instant now) {
  switch (clones_.hear(*session.theirs)) {
    case Instances::Heard::alone: return true;
    case Instances::Heard::again:
      session.stage = Session::Stage::doubted;
      ping(session, now);
      return false;
    case Instances::Heard::outlived: break;
  }
  send(session, clones_.outlived(*session.theirs, address_of_rival(*session.theirs)));
  refuse(session,
         Error{"cloned",
               "another process, which started earlier, has the id " + to_hex(session.theirs->id)},
         now);
  return false;
}

// It speaks though another process of its id has been heard since: both live.
void Conductor::on_proof_of_life(Session& session, Instant now) {
  const Hello hello = *session.theirs;
  Session* rival = rival_of(hello);
  const auto [two, keeps, notice] =
      clones_.on_proof_of_life(hello, hello.address, address_of_rival(hello));
  if (!two) return close(session.id, "asked to dial again", now, true);
  const std::string what = "two processes have the id " + to_hex(hello.id) + ", at " +
                           to_string(notice.keeper) + " and at " + to_string(notice.other) +
                           "; the second one, which started later, is to take a new id";
  log(Level::warning,
      "event=cloned peer=" + to_hex(hello.id) + " keeps=" + log_word(to_string(notice.keeper)) +
          " gives_up=" + log_word(to_string(notice.other)) + " hint=\"" + cloned_hint + "\"");
  note_refusal(true, who(session), Error{"cloned", what}, now);
  const SessionId spoke = session.id;
  send(session, notice);
  if (rival != nullptr) {
    send(*rival, notice);
    if (keeps) refuse(*rival, Error{"cloned", what}, now);
  }
  if (keeps) return close(spoke, "asked to dial again", now, true);
  if (Session* again = peers_.find(spoke); again != nullptr)
    refuse(*again, Error{"cloned", what}, now);
}

// Two processes of one id with different addresses make its record move to and fro. When it returns
// to a former address, the process there is probed.
void Conductor::look_at_former_addresses(const MemberRecord& before, const MemberRecord& claim,
                                         Instant now) {
  if (claim.id == state_.id || claim.incarnation <= before.incarnation ||
      claim.address == before.address)
    return;
  if (!clones_.moved(claim.id, before.address, claim.address) || life_.is_going()) return;
  if (!may_dial(claim.address, now)) return;
  dial(claim.address, claim.id, now);
}

// ---- clones, as they see themselves -------------------------------------------------------------

void Conductor::on_cloned(Session& session, const Cloned& notice, Instant now) {
  if (!session.theirs || notice.id != state_.id || life_.is_stopping()) return;
  on_cloned(notice, session.theirs->id, now);
}

void Conductor::on_cloned(const Cloned& notice, NodeId said_by, Instant now) {
  const std::string both = " keeps=" + log_word(to_string(notice.keeper)) +
                           " gives_up=" + log_word(to_string(notice.other));
  const std::size_t linked_others =
      peers_.established() - (peers_.session_of(said_by) == nullptr ? 0 : 1);
  switch (clones_.on_notice(notice, said_by, {directory_.alive_others(), linked_others}, now)) {
    case CloneWatch::Verdict::nothing: return;
    case CloneWatch::Verdict::gives_up: return take_another_id(notice, now);
    case CloneWatch::Verdict::keeps: break;
  }
  log(Level::warning,
      "event=cloned peer=" + to_hex(state_.id) + both + " hint=\"" + cloned_hint + "\"");
  note_refusal(false, to_string(notice.other), Error{"cloned", clones_.words()}, now);
}

// The process starts again as another node with the same model. Samples trained on until now count
// under the old id.
void Conductor::take_another_id(const Cloned& notice, Instant now) {
  if (life_.is_stopping() || state_.left || life_.is(Phase::leaving)) return;
  if (job_.next.is_under_way()) return;  // a state of the job before would undo it; asked again
  if (!clones_.may_change_id(now))
    return note_refusal(
        false, to_string(notice.keeper),
        Error{"cloned", "another clone of this node was claimed at " + to_string(notice.keeper) +
                            " soon after it had taken a new id; it keeps the id for now"},
        now);
  NodeState fresh;
  const std::uint64_t seed[] = {raw(state_.id), clones_.instance(),
                                static_cast<std::uint64_t>(now.time_since_epoch().count())};
  fresh.id = NodeId{XXH3_64bits(seed, sizeof seed) | 1};
  fresh.cluster = state_.cluster;
  fresh.job = state_.job;
  fresh.generation = state_.generation;
  fresh.meeting_in = state_.meeting_in;
  fresh.former_job = state_.former_job;
  fresh.former_generation = state_.former_generation;
  fresh.budget = progress_.budget();
  fresh.samples_per_second = progress_.rate();
  fresh.former_id = state_.id;
  fresh.former_samples = progress_.trained_under_all_ids();
  fresh.paused = state_.paused;
  for (const auto& [id, entry] : directory_.entries()) {
    fresh.members.push_back(entry.to_keep());
    if (entry.was_ever_met()) fresh.met.insert(id);
  }
  for (MemberRecord& record : fresh.members) {
    if (record.id != state_.id) continue;
    record.name = config_.name;
    if (!notice.keeper.host.empty()) record.address = notice.keeper;
  }
  log(Level::warning, "event=cloned peer=" + to_hex(state_.id) +
                          " keeps=" + log_word(to_string(notice.keeper)) +
                          " gives_up=" + log_word(to_string(notice.other)) +
                          " new_id=" + to_hex(fresh.id) + " hint=\"" + cloned_hint + "\"");
  life_.stop();
  close_all(bye_rotated, "this node takes another id", now);
  emit(PersistEffect{std::move(fresh)});
  emit(RestartEffect{});
}

}  // namespace gossipd
