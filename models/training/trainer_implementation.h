// models/training/trainer_implementation.h - what trainer.cpp and trainer_assistant.cpp share: the
// trainer's three threads and what each owns.
//
// The training thread steps, takes updates and gives snapshots. The evaluation thread evaluates and
// the writing thread writes checkpoints, both from copies that the training thread makes at a step
// boundary: neither a step nor an evaluation, by which a job may end, waits for a disk. See
// trainer.h for the contract.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "models/job/schedule.h"
#include "models/training/engine.h"
#include "models/training/step_loop.h"
#include "models/training/trainer.h"

namespace gossipd {

class Trainer::Implementation {
 public:
  Implementation(const Job& job, const TrainerOptions& options, std::unique_ptr<Engine> engine)
      : job_(job),
        options_(options),
        engine_(std::move(engine)),
        loop_(job.batch, engine_->outside() != nullptr),
        budget_samples_(job.budget_samples) {
    if (job.data.division == DataSpec::Division::shared)
      part_.emplace(engine_->shard_samples(), job.batch);
    publish_status(TrainerState::idle);
  }
  ~Implementation() { stop(); }

  const Job& job() const { return job_; }
  Engine& engine() { return *engine_; }

  std::optional<Error> restore(const Checkpoint&);
  void start(Callbacks, bool hold);
  void stop();
  void give(Update);
  void recall();
  void set_others_samples(Samples samples) { others_samples_.store(samples); }
  void set_budget(Samples samples);
  void set_division(std::vector<DivisionMember> members);
  void set_members(std::uint32_t members) { members_.store(members); }
  void set_settled(bool settled) { settled_.store(settled); }
  void raise_own_samples(Samples at_least);
  void set_remembered(Samples samples, Step step);
  void request_evaluation();
  void write_checkpoint(CheckpointRequest);
  TrainerStatus status() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using WallClock = std::chrono::steady_clock;
  // shared: written and evaluated at once
  using SharedCheckpoint = std::shared_ptr<const Checkpoint>;

  // What other threads ask of the training thread; taken whole at a step boundary.
  struct Inbox {
    std::optional<Update> update;
    bool recall = false;
    std::optional<std::vector<DivisionMember>> division;
    Samples own_samples_at_least = 0;
    bool evaluate = false;
    std::vector<CheckpointRequest> checkpoints;
    bool empty() const {
      return !update && !recall && !division && own_samples_at_least == 0 && !evaluate &&
             checkpoints.empty();
    }
  };
  // Of a set that the job's nodes divide.
  struct Part {
    Part(Samples samples, std::uint32_t job_batch)
        : owners(buckets_of(samples), job_batch),
          status{.buckets = owners.buckets(), .samples = samples} {}
    BucketOwners owners;
    std::vector<NodeId> members{};  // sorted
    std::vector<bool> owned{};      // empty: the engine has not been told of any
    DivisionStatus status;
    bool catch_up = false;  // go on where the cluster is, at the next step
  };

  // Training thread.
  void train();
  [[nodiscard]] bool at_boundary(Inbox);  // whether to step
  void apply(Update);
  void keep_local(std::span<float> values);
  void divide(std::vector<DivisionMember>);
  void take_checkpoints(std::vector<CheckpointRequest>);
  void one_step();
  void meet_outside();
  void on_report(const OutsideSteps::Reported&);
  void wake_training();
  void serve_snapshot();
  void settle();
  void fail(const std::exception&);
  [[nodiscard]] double scheduled_rate() const {
    return learning_rate_at(job_, cluster_samples(), budget_samples_.load());
  }
  [[nodiscard]] StepLoop::Rates rates() const {
    if (outside_rates_.peak > 0) return outside_rates_;
    return {.now = scheduled_rate(), .peak = learning_rate_peak(job_)};
  }
  [[nodiscard]] double learning_rate() const { return rates().now * loop_.rate_scale(); }
  [[nodiscard]] Samples cluster_samples() const { return loop_.samples() + others_samples_.load(); }
  void publish_status(TrainerState);
  SharedCheckpoint capture();

  // Evaluation thread.
  void assist();
  void evaluate(SharedCheckpoint, bool asked_for);

  // Writing thread.
  void write_checkpoints();
  void write(const CheckpointRequest&, SharedCheckpoint);

  const Job job_;
  const TrainerOptions options_;
  const std::unique_ptr<Engine> engine_;
  Callbacks callbacks_;
  std::thread training_thread_;
  std::thread evaluation_thread_;
  std::thread writing_thread_;

  // Owned by the training thread while it runs, by the owner otherwise.
  StepLoop loop_;
  StepLoop::Rates outside_rates_;  // as who makes the steps says; peak 0: it does not
  bool outside_present_ = false;
  bool failed_ = false;
  bool end_evaluated_ = false;
  Samples next_evaluation_ = 0;
  std::optional<Part> part_;
  std::vector<NodeId> trainers_;  // that train now, for who makes the steps; sorted

  std::atomic<Samples> others_samples_{0};
  std::atomic<Samples> budget_samples_;
  std::atomic<std::uint32_t> members_{1};
  std::atomic<bool> settled_{false};
  std::atomic<bool> cancel_evaluation_{false};

  mutable std::mutex mutex_;  // guards everything below
  struct Remembered {
    Step step = 0;
    Samples samples = 0;
  } remembered_;
  std::condition_variable training_wakes_;
  std::condition_variable evaluation_wakes_;
  std::condition_variable writing_wakes_;
  bool running_ = false;
  bool stop_training_ = false;
  bool stop_evaluation_ = false;
  bool stop_writing_ = false;
  Inbox inbox_;
  SharedCheckpoint to_evaluate_;  // the newest only
  bool to_evaluate_asked_for_ = false;
  SharedCheckpoint last_evaluated_;
  std::uint64_t evaluations_ = 0;
  std::deque<std::pair<CheckpointRequest, SharedCheckpoint>> to_write_;
  TrainerStatus status_;
};

}  // namespace gossipd
