// What an operator asks of the driver: each command is an event of the node like any other.
#include "daemon/node_driver.h"
#include "models/job/epochs.h"

namespace gossipd {

std::optional<Error> NodeDriver::join(std::vector<Endpoint> seeds) {
  const auto error = node_->join(std::move(seeds), begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::leave() {
  const auto error = node_->leave(begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::pause() {
  const auto error = node_->pause(begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::resume() {
  const auto error = node_->resume(begin_event());
  after_event();
  return error;
}

std::optional<Error> NodeDriver::extend_budget(Samples more) {
  const auto error = node_->extend_budget(more, begin_event());
  after_event();
  return error;
}

// What the job needs beside its text is kept first, since members will ask for it.
void NodeDriver::start_job(const std::string& file, bool replace, JobStarted done) {
  const Result<Job> job = load_job(file, config_.epoch_samples);
  if (!job) return done(job.error());
  if (job->model.kind == ModelSpec::Kind::external || job->start_content.bytes > 0)
    return done(
        Error{"bad-job", file + ": job '" + job->name +
                             "' needs a trainer or weights of the founder, which only a new "
                             "cluster takes; give it its own --state-dir"});
  const auto start = [this, job = *job, replace, done] {
    const std::size_t linked = node_->summary(EventLoop::now()).links_open;
    const std::uint64_t generation = node_->summary(EventLoop::now()).generation + 1;
    const auto error = node_->start_job(job.canonical_text(), job.hash(), replace, begin_event());
    if (error)
      done(*error);
    else
      done(StartedJob{job.name, job.hash(), generation, linked});
    after_event();
  };
  if (job->model.content.bytes == 0) return start();
  disk_.write(
      "the job's file",
      [files = store_.files(), content = job->model.content, from = job->model.file] {
        return files.keep(from, content);
      },
      [this, start, done](const std::optional<Error>& error) {
        if (error) return done(*error);
        if (!stopping_) return start();
        done(Error{"stopping", "this node stops"});
      });
}

std::optional<Error> NodeDriver::forget(NodeId member) {
  const auto error = node_->forget(member, begin_event());
  after_event();
  return error;
}

}  // namespace gossipd
