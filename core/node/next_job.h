// core/node/next_job.h - a node's way from one job of its cluster to the next.
//
// The problem: the member that starts the next job may die a moment later, disks take seconds, and
// members may be away. So nobody may wait for one particular node, and no node may tell others of a
// job that it would have forgotten after a crash.
//
// The answer: every member that knows the next job can go on to it alone, since the job's text says
// how the model begins. Each does the same: it writes the job and the state that begins it, then
// tells all members that it is linked to. It restarts once these have closed their sessions (a
// member that knows the job does so itself), or after `telling` at the latest. A member that was
// not reached is told when it says hello. Pure; one owner, the core strand.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "core/node/job_generation.h"

namespace gossipd {

class NextJob {
 public:
  static constexpr Duration telling = std::chrono::seconds(2);

  struct Job {
    JobGeneration which;
    std::string document;
  };

  // True: it is later than the one awaited, if any, and is now to be written.
  bool begin(const JobGeneration& which, std::string document) {
    if (job_ && which <= job_->which) return false;
    job_ = Job{which, std::move(document)};
    tell_until_.reset();
    return true;
  }
  // The disk has it: true for the one awaited, which is now to be told.
  bool on_written(const JobGeneration& which, Instant now) {
    if (!job_ || job_->which != which || tell_until_) return false;
    tell_until_ = now + telling;
    return true;
  }
  void on_failed(const JobGeneration& which) {
    if (job_ && job_->which == which && !tell_until_) job_.reset();
  }
  void heard_from(SessionId session) { knowing_.insert(session); }
  [[nodiscard]] bool is_known_to(SessionId session) const { return knowing_.contains(session); }

  // From then on the disk holds, or is to hold, a state of the next job only.
  [[nodiscard]] bool is_under_way() const { return job_.has_value(); }
  [[nodiscard]] bool is_telling() const { return tell_until_.has_value(); }
  [[nodiscard]] bool has_told(std::size_t sessions, Instant now) const {
    return tell_until_ && (sessions == 0 || now >= *tell_until_);
  }
  [[nodiscard]] const Job& job() const { return *job_; }  // under way

 private:
  std::optional<Job> job_;             // the next one
  std::optional<Instant> tell_until_;  // it is on disk
  std::set<SessionId> knowing_;        // sessions whose peers told of one, at most as there were
};

// What a node knows of its cluster's jobs.
struct JobInForce {
  std::string document;  // as it is handed on to joiners; empty: none is known
  NextJob next;
  ClusterId named_by{};  // a joiner's list of members came from this cluster; 0: it has none
};

}  // namespace gossipd
