// The driver from one job of the cluster to the next.
#include "daemon/next_job.h"

#include <memory>
#include <utility>

#include "core/base/printable.h"
#include "daemon/log/log.h"
#include "daemon/node_driver.h"

namespace gossipd {

namespace {

// before the server and gossipctl give up, after 60 s
constexpr Duration start_answer_limit = std::chrono::seconds(50);
constexpr Duration next_job_soon = std::chrono::seconds(5);

}  // namespace

// In bounded time. A refusal that comes later is for those who look at log and status.
DaemonPort::JobStarted NodeDriver::bounded_start(JobStarted done) {
  const Error late{"still-trying",
                   "trying the job and writing it take longer than " +
                       std::to_string(start_answer_limit / std::chrono::seconds(1)) +
                       " s; the cluster goes on to the job as soon as both are done"};
  const auto bounded = answers_.bounded<Result<StartedJob>>(
      std::move(done), late, EventLoop::now() + start_answer_limit,
      [this](const Result<StartedJob>& started) {
        if (!started) warn("job '" + *tried_job_ + "' was not started: " + started.error().text);
      });
  return [this, bounded](const Result<StartedJob>& started) {
    bounded(started);
    tried_job_.reset();
  };
}

// The data of a job with epochs is counted by the disk's thread: this node has finished, so nothing
// waits for that disk.
void NodeDriver::start_job(const std::string& file, JobStarted done) {
  const NodeSummary present = node();
  if (auto error = node_->why_no_next_job()) return done(*error);
  if (tried_job_)
    return done(Error{"job-starting",
                      "this node tries a job that was given before; try again when that is done"});
  if (job_ && job_->is_external)
    return done(Error{"bad-job", "the present job '" + job_->name +
                                     "' is trained by processes that attach, and they know of no "
                                     "other; found a cluster for the next one, with its own "
                                     "--state-dir"});
  const JobStarted answer = bounded_start(std::move(done));
  tried_job_ = printable(file);
  const auto job = std::make_shared<Result<Job>>(Error{"stopping", "this node stops"});
  disk_.write(
      "the next job's data",
      [this, file, job]() -> std::optional<Error> {
        *job = read_next_job(config_, file);
        return std::nullopt;
      },
      [this, file, job, answer](const std::optional<Error>&) {
        if (stopping_) return answer(why_not_tried());
        if (!*job) return answer(job->error());
        tried_job_ = printable((*job)->name);
        if (auto error = node_->why_no_next_job((*job)->hash())) return answer(*error);
        trial_.start(config_, file, [this, job, answer](const std::optional<Error>& error) {
          if (stopping_) return answer(why_not_tried());
          if (error) return answer(*error);
          begin_job(**job, answer);
        });
      });
}

// This node stops while it tries a job.
Error NodeDriver::why_not_tried() const {
  if (next_job_ != JobHash{})
    return Error{"other-job", "another member started job " + to_hex(next_job_) +
                                  " meanwhile, and this node starts again with that one"};
  return Error{"stopping", restart_wanted_
                               ? "this node starts again under another id; start the job then"
                               : "this node stops"};
}

void NodeDriver::begin_job(const Job& job, const JobStarted& answer) {
  const auto error = node_->start_job(job.canonical_text(), job.hash(), begin_event());
  if (error)
    answer(*error);
  else
    job_start_ = JobStart{StartedJob{job.name, job.hash(), node().generation + 1}, answer};
  after_event();
}

void NodeDriver::answer_job_start(const Result<JobHash>& begun) {
  if (!job_start_) return;
  const JobStart start = *std::exchange(job_start_, std::nullopt);
  if (!begun) return start.answer(begun.error());
  if (*begun == start.job.hash) return start.answer(start.job);
  start.answer(Error{"other-job", "another member started job " + to_hex(*begun) +
                                      " at the same time, and that one is the cluster's now"});
}

// Text and state are one task, so that no other write comes between them. Of a crash between the
// two the text before is left, as job.previous.toml, and of a state that cannot be written as well.
void NodeDriver::carry_out(NextJobEffect& effect) {
  next_job_since_ = event_began_;
  unsaved_job_.reset();
  const auto next = std::make_shared<const NextJobEffect>(std::move(effect));
  const Result<Job> job = Job::parse(next->document, "the cluster's next job");
  if (!job || job->hash() != next->hash) {
    const Error error{"bad-job", "the cluster goes on to a job that this node does not understand" +
                                     (job ? std::string() : " (" + job.error().text + ")") +
                                     "; install the gossipd of the other members here"};
    return loop_.post([this, next, error] { on_next_job_written(*next, error); });
  }
  const std::string before = job_ ? job_->document : std::string();
  disk_.write(
      "the next job",
      [this, next, before]() -> std::optional<Error> {
        if (auto error = store_.save_job(next->document)) return error;
        auto error = store_.save_state(next->state);
        if (error && !before.empty()) (void)store_.save_job(before);
        return error;
      },
      [this, next](const std::optional<Error>& error) { on_next_job_written(*next, error); });
}

void NodeDriver::on_next_job_written(const NextJobEffect& next, const std::optional<Error>& error) {
  next_job_since_.reset();
  if (error) {
    warn(error->text + "; this node stays with its job until it hears of the next one again");
    answer_job_start(*error);
  } else {
    next_job_ = next.hash;
  }
  if (stopping_) return;
  node_->on_next_job_kept(next.state, !error, begin_event());
  after_event();
}

// Others train by then, so an operator looks here for why this node does not.
void NodeDriver::look_at_next_job() {
  if (!next_job_since_ || EventLoop::now() - *next_job_since_ < next_job_soon) return;
  next_job_since_.reset();
  const DiskView disk = disk_view(EventLoop::now());
  warn("the cluster goes on to its next job, and this node waits for the disk of " +
       store_.directory().string() + " to take it" +
       (disk.writing.empty() ? "" : ", which still writes " + disk.writing) +
       "; look for the disk's errors in the system's log");
}

}  // namespace gossipd
