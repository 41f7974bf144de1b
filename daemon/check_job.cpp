#include "daemon/check_job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>

#include "daemon/disk/state_store.h"
#include "daemon/start_plan.h"
#include "models/data/data_set.h"
#include "models/data/target_scale.h"
#include "models/job/epochs.h"
#include "models/training/start_weights.h"
#include "models/training/torch_engine.h"

namespace gossipd {

namespace {

constexpr int steps_timed = 1;
constexpr std::size_t evaluated_most = 10;  // samples, for each that is trained on meanwhile

// Of this process, at its highest; 0: the system does not say.
std::uint64_t memory_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) / 1024;
  return 0;
}

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string data_words(const Job& job, const DataSets& sets) {
  std::string words = format("# data: %zu samples to train on, %zu held out", sets.train->count(),
                             sets.held_out ? sets.held_out->count() : std::size_t{0});
  if (job.data.vocabulary > 0)
    words += format(", a vocabulary of %lld", static_cast<long long>(job.data.vocabulary));
  else if (job.data.classes > 0)
    words += format(", %lld classes", static_cast<long long>(job.data.classes));
  if (!sets.left_out.empty()) words += "; left out: " + sets.left_out;
  return words +
         format("\n# budget: %llu samples, %.1f times the data\n",
                static_cast<unsigned long long>(job.budget_samples),
                static_cast<double>(job.budget_samples) / static_cast<double>(sets.train->count()));
}

std::vector<std::string> warnings_of(const Job& job, const DataSets& sets) {
  std::vector<std::string> warnings;
  if (job.optimizer.learning_rate == 0)
    warnings.emplace_back(
        "learning_rate = 0: nothing is learned; leave it out for the optimizer's default");
  // Those of bce are probabilities, and a loss of the model's own may scale them itself.
  if (job.loss.kind == LossSpec::Kind::mse)
    if (const auto note = note_on_targets(*sets.train)) warnings.push_back(*note);
  const std::vector<Samples>& milestones = job.schedule.milestones;
  if (!milestones.empty() && milestones.front() >= job.budget_samples)
    warnings.push_back("[schedule] milestones: the first one, " +
                       std::to_string(milestones.front()) + ", is not below budget_samples = " +
                       std::to_string(job.budget_samples) + ", so the learning rate never falls");
  // Each is of the whole set, beside the steps.
  const std::size_t held_out = sets.held_out ? sets.held_out->count() : 0;
  const Samples between = std::max<Samples>(job.evaluate_every_samples, job.batch);
  if (job.evaluate_every_samples > 0 && held_out >= evaluated_most * between)
    warnings.push_back("evaluate_every_samples = " + std::to_string(job.evaluate_every_samples) +
                       ": each evaluation takes " + std::to_string(held_out) +
                       " samples, so nodes evaluate all the time and train slower for it; an epoch "
                       "has " +
                       std::to_string(sets.train->count()));
  return warnings;
}

// At a learning rate of nothing, so that only the loss and the time are seen.
Result<std::string> step_words(const Job& job, GradientEngine& engine) {
  const auto step = [&engine, &job](Samples position) {
    const double loss = engine.step(position, 0.0, job.batch);
    engine.settle();
    return loss;
  };
  engine.prepare_thread(0);
  double loss = step(0);  // the first one also makes ready what all need
  const auto began = std::chrono::steady_clock::now();
  for (int i = 1; i <= steps_timed; ++i) loss = step(static_cast<Samples>(i) * job.batch);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count() /
      steps_timed;
  if (!std::isfinite(loss))
    return Error{"bad-model",
                 "the loss of the first steps is not finite, before anything is trained; look at "
                 "mean and deviation of [data], and at the model"};
  std::uint64_t parameters = 0;  // without statistics, counters and gaps
  for (const Segment& segment : engine.schema().segments())
    if (segment.kind == SegmentKind::parameter) parameters += segment.size;
  return format("# model: %llu parameters on %s\n", static_cast<unsigned long long>(parameters),
                engine.device().c_str()) +
         format("# step: %.1f ms for %u samples, loss %.4f; memory %llu MB\n", ms, job.batch, loss,
                static_cast<unsigned long long>(memory_mb()));
}

}  // namespace

Result<TriedJob> try_job(const DaemonConfig& config) {
  if (config.job_file.empty()) return TriedJob{};
  const Result<Job> job = load_job(config.job_file, config.epoch_samples);
  if (!job) return job.error();
  if (job->model.kind == ModelSpec::Kind::external)
    return TriedJob{.comments = "# model: that of the process that attaches\n", .warnings = {}};
  if (config.data_dir.empty())
    return Error{"no-data", "the data of job '" + job->name +
                                "' is not named; give --data DIR, where DIR holds " +
                                files_wanted(job->data)};
  auto sets =
      load_data(job->data, {.directory = config.data_dir,
                            .seed = job->seed,
                            .image_cache_bytes = std::uint64_t{config.image_cache_mb} << 20});
  if (!sets) return sets.error();
  if (auto wrong = check_shard(*job, config, sets->train->count())) return *wrong;
  const std::string data = data_words(*job, *sets);
  const std::size_t count = sets->train->count();
  auto engine = make_torch_engine(
      *job, config.device,
      static_cast<int>(config.threads != 0 ? config.threads
                                           : std::max(1u, std::thread::hardware_concurrency())),
      BatchSource(sets->train, DataOrder(job->seed, count, DataOrder::Shard{0, 1, 0})), nullptr,
      job->model.file);
  if (!engine) return engine.error();
  try {
    if (!job->start_from.empty())
      if (auto error = start_with(job->start_from, **engine)) return *error;
    const Result<std::string> step = step_words(*job, **engine);
    if (!step) return step.error();
    return TriedJob{.comments = data + *step, .warnings = warnings_of(*job, *sets)};
  } catch (const std::exception& error) {
    return Error{"bad-model", std::string("a step of the job fails: ") + error.what()};
  }
}

std::optional<Error> refuse_first_weights(const DaemonConfig& config) {
  const bool may_found = config.join.empty() || config.ordinal == 0u;
  if (config.job_file.empty() || !may_found || !StateStore::is_new(config.state_dir))
    return std::nullopt;
  const Result<Job> job = load_job(config.job_file, config.epoch_samples);
  if (!job) return job.error();
  return check_start_from(*job);
}

}  // namespace gossipd
