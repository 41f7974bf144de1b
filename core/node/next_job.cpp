// From one job of the cluster to the next. Sessions exist only between members of one job, so what
// members say of each other never reaches another one: no claim carries a generation.
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/node/conductor.h"

namespace gossipd {

JobGeneration Conductor::own_job() const {
  return JobGeneration::said(state_.generation, state_.job);
}

// ---- the operator -------------------------------------------------------------------------------

std::optional<Error> Conductor::start_job(std::string document, JobHash hash, bool replace,
                                          Instant now) {
  GOSSIPD_ASSERT(document.size() <= job_bytes_max);
  const bool is_over = life_.is(Phase::finished);
  if (life_.is_going() || life_.is_stopping())
    return Error{"left", "this node leaves the cluster; start the job on another member"};
  if (!is_over && !life_.is_stepping_or_idle() && !life_.is(Phase::finishing))
    return Error{"not-ready", std::string("this node is ") + to_string(phase()) +
                                  "; start the job on a member that trains or has finished"};
  if (!is_over && !replace)
    return Error{"job-running",
                 "the job in force is not finished; wait for it, or end it with --replace"};
  const auto next = own_job().followed_by(hash);
  if (!next)
    return Error{"same-job",
                 "this job is in force already; `gossipctl job extend` gives it more samples"};
  go_on_to(*next, std::move(document), true, now);
  return std::nullopt;
}

// ---- what peers say -----------------------------------------------------------------------------

std::optional<Error> Conductor::check_job(const Hello& hello) const {
  const JobGeneration own = own_job(), theirs = JobGeneration::said(hello.generation, hello.job);
  if (hello.job == JobHash{} || theirs == own) return std::nullopt;
  if (!own.believes(theirs))
    return Error{"implausible", hello.name + " says that its job has generation " +
                                    std::to_string(hello.generation) + ", which cannot be"};
  // A joiner takes the job of the first it meets, and may meet a member of another one meanwhile.
  if (state_.job == JobHash{}) {
    for (const auto& [id, session] : peers_.sessions())
      if (session.established() && session.theirs->job != JobHash{} &&
          session.theirs->job != hello.job)
        return Error{"job-mismatch", "this node is joining job " + to_hex(session.theirs->job) +
                                         "; it can go on to another one when it has joined"};
    return std::nullopt;
  }
  // The two cannot be told apart by age.
  if (hello.generation == 0 && own.generation == JobGeneration::founding)
    return Error{"job-mismatch",
                 "job " + to_hex(hello.job) + " meets job " + to_hex(state_.job) +
                     "; start without --job to take the cluster's, or found a cluster of your own"};
  const std::string both = "job " + to_hex(hello.job) + " of generation " +
                           std::to_string(theirs.generation) + " meets job " + to_hex(state_.job) +
                           " of generation " + std::to_string(own.generation);
  if (theirs > own) return Error{"newer-job", both};
  return Error{"older-job", both + "; the later one is in force in this cluster"};
}

// The end with the later job offers it and closes the session; the other waits for that.
void Conductor::on_other_job(Session& session, const Error& error, Instant now) {
  if (error.code == "newer-job") return;
  if (!job_document_.empty() && session.theirs->generation > 0)
    send(session, JobOffer{state_.job, progress_.in_force(), job_document_, own_job().generation});
  refuse(session, error, now);
}

void Conductor::on_next_job(Session& session, const JobOffer& offer, Instant now) {
  if (!session.theirs || session.theirs->cluster != state_.cluster || life_.is_going() ||
      life_.is_stopping() || state_.job == JobHash{})
    return refuse(session, Error{"handshake", "a job is offered to a node that asked for none"},
                  now);
  const JobGeneration next = JobGeneration::said(offer.generation, offer.hash);
  if (next <= own_job() || !own_job().believes(next))
    return refuse(session, Error{"implausible", "a job is offered that does not follow the own"},
                  now);
  if (JobHash{XXH3_64bits(offer.document.data(), offer.document.size())} != offer.hash)
    return refuse(session,
                  Error{"job-corrupt", "the job's text does not have the hash it was offered with"},
                  now);
  go_on_to(next, offer.document, false, now);
}

// ---- the change ---------------------------------------------------------------------------------

// What the node is stays; what it did for the job before does not count for the next.
NodeState Conductor::state_for(const JobGeneration& next, bool starts) const {
  NodeState fresh;
  fresh.id = state_.id;
  fresh.cluster = state_.cluster;
  fresh.incarnation = durable_.to_reserve(state_.incarnation);
  fresh.name = state_.name;
  fresh.founder = starts;  // its first model is the cluster's
  fresh.job = next.hash;
  fresh.generation = next.generation;
  for (const auto& [id, entry] : directory_.entries()) {
    if (id == state_.id || fresh.members.size() == members_max) continue;
    MemberRecord member = entry.record;
    member.samples = 0;
    member.step = 0;
    member.phase = Phase::joining;
    member.budget = {};
    fresh.members.push_back(std::move(member));
    if (entry.was_ever_met()) fresh.met.insert(id);
  }
  return fresh;
}

void Conductor::go_on_to(const JobGeneration& next, std::string document, bool starts,
                         Instant now) {
  log(Level::info, "event=next-job job=" + to_hex(next.hash) + " generation=" +
                       std::to_string(next.generation) + " before=" + to_hex(state_.job));
  NodeState fresh = state_for(next, starts);
  life_.stop();
  close_all(bye_rotated, "the cluster goes on to its next job", now);
  emit(NextJobEffect{std::move(document), next.hash});
  emit(PersistEffect{std::move(fresh)});
  emit(RestartEffect{});
}

}  // namespace gossipd
