// From one job of the cluster to the next.
#include "core/node/next_job.h"

#include <utility>

#include "core/base/printable.h"
#include "core/model/job_hash.h"
#include "core/node/conductor.h"

namespace gossipd {

JobGeneration Conductor::own_job() const { return {state_.generation, state_.job}; }

// ---- the operator -------------------------------------------------------------------------------

std::optional<Error> Conductor::why_no_job() const {
  if (state_.job != JobHash{}) return std::nullopt;
  return Error{"no-job", "this node knows no job yet; join the cluster first"};
}

// The node is about to start again, which would undo what it is told meanwhile.
std::optional<Error> Conductor::why_not_during_change() const {
  if (!job_.next.is_under_way()) return std::nullopt;
  return Error{"job-starting",
               "this node goes on to another job right now; try again when it has started"};
}

std::optional<Error> Conductor::why_no_next_job(std::optional<JobHash> next) const {
  if (life_.is_going() || life_.is_stopping())
    return Error{"left", "this node leaves the cluster; start the job on another member"};
  if (auto error = why_not_during_change()) return error;
  if (auto error = why_no_job()) return error;
  if (life_.is(Phase::joining))
    return Error{"job-running",
                 "this node is still joining; `gossipctl wait --for ready` waits for it"};
  if (!life_.is(Phase::finished))
    return Error{"job-running", std::string("the present job is not finished, this node is ") +
                                    to_string(phase()) +
                                    "; `gossipctl wait --for finished` waits for it"};
  if (next == state_.job)
    return Error{"same-job",
                 "this is the present job; `gossipctl job extend` gives it more samples, and "
                 "another name or seed makes it another job"};
  return std::nullopt;
}

std::optional<Error> Conductor::start_job(std::string document, JobHash hash, Instant now) {
  GOSSIPD_ASSERT(document.size() <= job_bytes_max);
  if (auto error = why_no_next_job(hash)) return error;
  const auto next = own_job().followed_by(hash);
  if (!next) return Error{"job-running", "no number is left for another job"};
  go_on_to(*next, std::move(document), now);
  return std::nullopt;
}

// ---- what peers say -----------------------------------------------------------------------------

// Of one founded cluster, but of another of its jobs.
std::optional<Error> Conductor::check_generation(const Hello& hello) const {
  const JobGeneration own = own_job(), theirs{hello.generation, hello.job};
  if (hello.founded != state_.cluster) return std::nullopt;
  if (!own.believes(theirs.generation))
    return Error{"implausible", hello.name + " says that its job is number " +
                                    std::to_string(hello.generation) + ", which cannot be"};
  const std::string both = "job number " + std::to_string(theirs.generation) + ", " +
                           to_hex(theirs.hash) + ", meets job number " +
                           std::to_string(own.generation) + ", " + to_hex(own.hash) +
                           ", of the same cluster";
  return Error{theirs > own ? "newer-job" : "older-job", both};
}

// The end with the later job tells it and closes the session; the other waits for that.
void Conductor::on_other_generation(Session& session, const Error& error, Instant now) {
  if (error.code == "newer-job") return;
  log(Level::info, "event=next-job-told peer=" + who(session) + " why=" + log_quoted(error.text));
  if (!job_.document.empty())
    send(session, Succession{state_.cluster, own_job().generation, state_.job, job_.document});
  close(session.id, error.text, now, true);
}

void Conductor::on_succession(Session& session, const Succession& told, Instant now) {
  if (!session.theirs || session.stage == Session::Stage::doubted)
    return refuse(session, Error{"handshake", "a next job came before a hello"}, now);
  if (life_.is_going() || state_.cluster == ClusterId{}) return;
  const JobGeneration next{told.generation, told.hash};
  if (told.founded != state_.cluster || !own_job().believes(next.generation))
    return refuse(session, Error{"implausible", "a next job is told that cannot follow this one"},
                  now);
  if (job_hash_of(told.document) != told.hash)
    return refuse(session,
                  Error{"job-corrupt", "the job's text does not have the hash it was told with"},
                  now);
  if (next <= own_job()) return;
  job_.next.heard_from(session.id);
  if (!job_.next.is_under_way() || next > job_.next.job().which) {
    log(Level::info, "event=next-job-heard peer=" + who(session) + " job=" + to_hex(next.hash) +
                         " number=" + std::to_string(next.generation));
    return go_on_to(next, told.document, now);
  }
  if (job_.next.is_telling()) close(session.id, "both know the next job", now, true);
}

// ---- the change ---------------------------------------------------------------------------------

// What the node is stays; what it did for the job before does not count for the next.
NodeState Conductor::state_for(const JobGeneration& next, Instant now) const {
  NodeState fresh;
  fresh.id = state_.id;
  fresh.cluster = state_.cluster;
  fresh.incarnation = state_.incarnation;
  fresh.name = state_.name;
  fresh.founder = state_.founder;
  fresh.former_id = state_.former_id;
  fresh.job = next.hash;
  fresh.generation = next.generation;
  fresh.meeting_in = next.meeting_in(state_.cluster);
  fresh.former_job = state_.job;
  fresh.former_generation = state_.generation;
  fresh = Persistence(now, {}, {}).to_write(std::move(fresh), directory_, now);
  fresh.incarnation = durable_.to_reserve(state_.incarnation);
  for (MemberRecord& member : fresh.members) {
    member.samples = 0;
    member.step = 0;
    member.samples_per_second = 0;
    member.loss = 0;
    member.phase = Phase::joining;
    member.budget = {};
  }
  return fresh;
}

void Conductor::go_on_to(const JobGeneration& next, std::string document, Instant now) {
  if (!job_.next.begin(next, std::move(document))) return;
  log(Level::info, "event=next-job job=" + to_hex(next.hash) + " number=" +
                       std::to_string(next.generation) + " before=" + to_hex(state_.job));
  emit(NextJobEffect{job_.next.job().document, next.hash, state_for(next, now)});
}

void Conductor::on_next_job_kept(JobHash hash, std::uint64_t generation, bool kept, Instant now) {
  const JobGeneration which{generation, hash};
  if (!kept) {
    job_.next.on_failed(which);
    return persistence_.urge();
  }
  if (!job_.next.on_written(which, now)) return;
  const Succession told{state_.cluster, generation, hash, job_.next.job().document};
  for (const SessionId id : peers_.ids()) {
    Session* session = peers_.find(id);
    if (session == nullptr) continue;
    if (session->established() && !job_.next.is_known_to(id))
      send(*session, told);
    else
      close(id, "the cluster goes on to its next job", now, true);
  }
}

// Who was told closes its session once its own disk knows.
void Conductor::check_next_job(Instant now) {
  if (!job_.next.has_told(peers_.ids().size(), now)) return;
  life_.stop();
  close_all(bye_rotated, "the cluster goes on to its next job", now);
  emit(RestartEffect{});
}

}  // namespace gossipd
