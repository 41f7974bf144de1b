// Two processes under one id, and connections that come back to the node that made them.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

// an address that leads back here may lead elsewhere later
constexpr Duration self_mark = std::chrono::seconds(60);
// one member alone does not take another's id away
constexpr std::size_t witnesses_min = 2;

const char* const cloned_hint =
    "a state directory was copied; of the two processes the one that started later takes a new id "
    "by itself";

}  // namespace

// ---- reflections --------------------------------------------------------------------------------

void NodeImpl::on_reflected(Session& session, Instant now) {
  if (!session.outbound) return;
  DialState& dialled = dials_[session.remote];
  dialled.self_until = now + self_mark;
  const std::string reason =
      "the connection to " + to_string(session.remote) +
      " comes back to this node: an address of its own, a router that turns it "
      "round, or somebody on the way; it is tried again every " +
      std::to_string(static_cast<int>(seconds(self_mark))) + " s";
  note_refusal(false, to_string(session.remote), Error{"self", reason}, now);
  if (dialled.last_reason == reason) return;
  dialled.last_reason = reason;
  log(Level::warning,
      "event=dial-reflected endpoint=" + to_string(session.remote) + " reason=\"" + reason + "\"");
}

// ---- clones, as others see them -----------------------------------------------------------------

// False: the session waits for an answer, or has been refused.
bool NodeImpl::is_alone(Session& session, Instant now) {
  switch (instances_.hear(session.theirs->id, session.theirs->instance)) {
    case Instances::Heard::alone: return true;
    case Instances::Heard::again:
      session.doubted = true;
      ping(session, now);
      return false;
    case Instances::Heard::outlived: break;
  }
  Endpoint keeper;
  if (const Session* rival = session_of(session.theirs->id); rival != nullptr)
    keeper = rival->theirs->address;
  send(session, Cloned{session.theirs->id, instances_.current(session.theirs->id),
                       session.theirs->instance, keeper, session.theirs->address});
  refuse(session,
         Error{"cloned",
               "another process, which started earlier, has the id " + to_hex(session.theirs->id)},
         now);
  return false;
}

// It speaks though another process of its id has been heard since: both live.
void NodeImpl::on_proof_of_life(Session& session, Instant now) {
  const Hello hello = *session.theirs;
  const std::uint64_t before = instances_.current(hello.id);
  const bool keeps = instances_.returned(hello.id, hello.instance);
  if (keeps && before == hello.instance) return close(session.id, "asked to dial again", now, true);
  Session* rival = session_of(hello.id);
  // a link to the same process
  if (rival != nullptr && rival->theirs->instance == hello.instance) rival = nullptr;
  const Endpoint here = hello.address.host.empty() ? session.theirs->address : hello.address;
  const Endpoint there =
      rival != nullptr ? rival->theirs->address : instances_.other_address(hello.id, here);
  const Cloned notice{hello.id, keeps ? hello.instance : before, keeps ? before : hello.instance,
                      keeps ? here : there, keeps ? there : here};
  const std::string what = "two processes have the id " + to_hex(hello.id) + ", at " +
                           to_string(notice.keeper) + " and at " + to_string(notice.other) +
                           "; the second one, which started later, is to take a new id";
  log(Level::warning, "event=cloned peer=" + to_hex(hello.id) +
                          " keeps=" + to_string(notice.keeper) +
                          " gives_up=" + to_string(notice.other) + " hint=\"" + cloned_hint + "\"");
  note_refusal(true, who(session), Error{"cloned", what}, now);
  const SessionId spoke = session.id;
  send(session, notice);
  if (rival != nullptr) {
    send(*rival, notice);
    if (keeps) refuse(*rival, Error{"cloned", what}, now);
  }
  if (keeps) return close(spoke, "asked to dial again", now, true);
  if (const auto found = sessions_.find(spoke); found != sessions_.end())
    refuse(found->second, Error{"cloned", what}, now);
}

// Of two processes with unlike addresses the record goes to and fro: whoever is at the address it
// returns to is asked who it is.
void NodeImpl::look_at_former_addresses(const MemberRecord& before, const MemberRecord& claim,
                                        Instant now) {
  if (claim.id == state_.id || claim.incarnation <= before.incarnation ||
      claim.address == before.address)
    return;
  if (!instances_.moved(claim.id, before.address, claim.address) || life_.is_going()) return;
  if (!may_dial(claim.address, now)) return;
  dials_[claim.address].probed = claim.id;
  dial(claim.address, now);
}

// ---- clones, as they see themselves -------------------------------------------------------------

void NodeImpl::on_cloned(Session& session, const Cloned& notice, Instant now) {
  if (!session.theirs || notice.id != state_.id || life_.is_stopping()) return;
  on_cloned(notice, session.theirs->id, now);
}

void NodeImpl::on_cloned(const Cloned& notice, NodeId said_by, Instant now) {
  const std::string both =
      " keeps=" + to_string(notice.keeper) + " gives_up=" + to_string(notice.other);
  if (notice.keeps == instance_) {
    const std::string words = "another process with this node's id was met at " +
                              to_string(notice.other) + ", and is to take a new id";
    if (std::exchange(cloned_, words) == words) return;
    log(Level::warning,
        "event=cloned peer=" + to_hex(state_.id) + both + " hint=\"" + cloned_hint + "\"");
    note_refusal(false, to_string(notice.other), Error{"cloned", words}, now);
  } else if (notice.gives_up == instance_) {
    said_cloned_.insert(said_by);
    if (said_cloned_.size() >=
        std::min(witnesses_min, std::max<std::size_t>(1, directory_.alive_others())))
      take_another_id(notice, now);
  }
}

// The process starts again, as another node that has the same model. What it has trained on until
// now counts under the old id.
void NodeImpl::take_another_id(const Cloned& notice, Instant now) {
  if (life_.is_stopping() || state_.left || life_.is(Phase::leaving)) return;
  NodeState fresh;
  const std::uint64_t seed[] = {raw(state_.id), instance_,
                                static_cast<std::uint64_t>(now.time_since_epoch().count())};
  fresh.id = NodeId{XXH3_64bits(seed, sizeof seed) | 1};
  fresh.cluster = state_.cluster;
  fresh.job = state_.job;
  fresh.budget = progress_.budget();
  fresh.samples_per_second = progress_.rate();
  fresh.former_id = state_.id;
  fresh.former_samples = progress_.trained_under_all_ids();
  for (const auto& [id, entry] : directory_.entries()) fresh.members.push_back(entry.record);
  for (MemberRecord& record : fresh.members)
    if (record.id == state_.id) record.address = notice.keeper, record.name = config_.name;
  log(Level::warning, "event=cloned peer=" + to_hex(state_.id) + " keeps=" +
                          to_string(notice.keeper) + " gives_up=" + to_string(notice.other) +
                          " new_id=" + to_hex(fresh.id) + " hint=\"" + cloned_hint + "\"");
  life_.stop();
  std::vector<SessionId> ids;
  for (auto& [id, session] : sessions_) {
    if (session.established) send(session, Bye{bye_rotated});
    ids.push_back(id);
  }
  for (const SessionId id : ids) close(id, "this node takes another id", now, true);
  emit(PersistEffect{std::move(fresh)});
  emit(RestartEffect{});
}

}  // namespace gossipd
