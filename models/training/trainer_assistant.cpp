// The evaluation thread and the writing thread: how checkpoints are asked for, taken and written.
#include "core/base/large_memory.h"
#include "models/devices/runtime.h"
#include "models/training/trainer_implementation.h"

namespace gossipd {

namespace {

constexpr std::size_t checkpoint_requests_max = 16;

}  // namespace

// ---- any thread ----

void Trainer::Implementation::write_checkpoint(CheckpointRequest request) {
  SharedCheckpoint checkpoint;
  std::optional<Error> refused;
  {
    const Lock lock(mutex_);
    const bool evaluated = request.model == CheckpointRequest::Model::last_evaluated;
    if (evaluated && !last_evaluated_) {
      refused = Error{"not-evaluated",
                      request.path.string() + ": not written: no model has been evaluated yet"};
    } else if (evaluated && request.evaluation != evaluations_) {
      refused = Error{"superseded", request.path.string() +
                                        ": not written: a newer model has been evaluated since"};
    } else if (inbox_.checkpoints.size() + to_write_.size() >= checkpoint_requests_max) {
      refused = Error{"busy", request.path.string() +
                                  ": not written: " + std::to_string(checkpoint_requests_max) +
                                  " checkpoints are waiting already; is the disk that slow?"};
    } else if (!running_) {
      checkpoint = evaluated ? last_evaluated_ : capture();
    } else if (evaluated) {
      to_write_.emplace_back(std::move(request), last_evaluated_);
      writing_wakes_.notify_all();
      return;
    } else {
      inbox_.checkpoints.push_back(std::move(request));
      wake_training();
      return;
    }
  }
  if (!refused)
    write(request, checkpoint);
  else if (request.done)
    request.done(*refused);
}

// ---- training thread ----

void Trainer::Implementation::take_checkpoints(std::vector<CheckpointRequest> requests) {
  if (requests.empty()) return;
  SharedCheckpoint checkpoint;
  try {
    checkpoint = capture();
  } catch (const std::exception& error) {
    const std::string why =
        dynamic_cast<const std::bad_alloc*>(&error) != nullptr
            ? "no main memory is left for a copy of the model"
            : "the model cannot be read from " + engine_->device() + ": " + error.what();
    for (const CheckpointRequest& request : requests)
      if (request.done)
        request.done(Error{"device-failed", request.path.string() + ": not written: " + why});
    if (!failed_) throw;
    return;
  }
  const Lock lock(mutex_);
  for (CheckpointRequest& request : requests)
    to_write_.emplace_back(std::move(request), checkpoint);
  writing_wakes_.notify_all();
}

Trainer::Implementation::SharedCheckpoint Trainer::Implementation::capture() {
  auto out = std::make_shared<Checkpoint>();
  out->model = large_zeros(engine_->schema().floats());
  engine_->copy_model(out->model);
  out->optimizer = engine_->optimizer_state();
  out->step = loop_.step();
  out->samples = loop_.samples();
  out->others_samples = others_samples_.load();
  out->data_position = loop_.data_position();
  out->shard_index = options_.shard_index;
  out->shard_count = options_.shard_count;
  out->loss = loop_.loss();
  out->job = job_.hash();
  out->metadata["job_name"] = job_.name;
  return out;
}

// ---- evaluation thread ----

void Trainer::Implementation::assist() {
  engine_->prepare_thread(options_.nice);
  while (true) {
    SharedCheckpoint evaluating;
    bool asked_for = false;
    {
      Lock lock(mutex_);
      evaluation_wakes_.wait(lock, [&] { return stop_evaluation_ || to_evaluate_; });
      if (!to_evaluate_) return;  // stopped
      evaluating = std::exchange(to_evaluate_, nullptr);
      asked_for = std::exchange(to_evaluate_asked_for_, false);
    }
    evaluate(std::move(evaluating), asked_for);
  }
}

void Trainer::Implementation::evaluate(SharedCheckpoint checkpoint, bool asked_for) {
  const auto began = WallClock::now();
  std::optional<Figures> figures;
  try {
    figures = engine_->evaluate(checkpoint->model, cancel_evaluation_);
  } catch (const std::exception& error) {
    if (callbacks_.on_evaluation_failure)
      callbacks_.on_evaluation_failure(
          Error{"evaluation-failed", "evaluating step " + std::to_string(checkpoint->step) +
                                         " on " + engine_->device() + " failed: " + error.what() +
                                         "; training goes on, without this evaluation"});
  }
  if (!figures) {
    if (asked_for && !cancel_evaluation_ && callbacks_.on_no_evaluation)
      callbacks_.on_no_evaluation();
    return;
  }
  Evaluation out{*figures, checkpoint->step, checkpoint->samples + checkpoint->others_samples,
                 std::chrono::duration<double>(WallClock::now() - began).count(), asked_for};
  {
    const Lock lock(mutex_);
    last_evaluated_ = std::move(checkpoint);
    out.number = ++evaluations_;
  }
  if (callbacks_.on_evaluation) callbacks_.on_evaluation(out);
}

// Of who makes the steps: of the model as it was a moment ago.
void Trainer::Implementation::on_report(const OutsideSteps::Reported& report) {
  SharedCheckpoint checkpoint = capture();
  Evaluation out{report, report.step, cluster_samples(), report.seconds, /*asked_for=*/false};
  {
    const Lock lock(mutex_);
    last_evaluated_ = std::move(checkpoint);
    out.number = ++evaluations_;
  }
  if (callbacks_.on_evaluation) callbacks_.on_evaluation(out);
}

// ---- writing thread ----

void Trainer::Implementation::write_checkpoints() {
  engine_->prepare_thread(options_.nice);
  Lock lock(mutex_);
  while (true) {
    writing_wakes_.wait(lock, [&] { return stop_writing_ || !to_write_.empty(); });
    if (to_write_.empty()) return;  // stopped, and nothing is left
    auto [request, checkpoint] = std::move(to_write_.front());
    to_write_.pop_front();
    lock.unlock();
    write(request, std::move(checkpoint));
    lock.lock();
  }
}

void Trainer::Implementation::write(const CheckpointRequest& request, SharedCheckpoint checkpoint) {
  const auto began = std::chrono::steady_clock::now();
  const auto bytes = gossipd::write_checkpoint(request.path, engine_->schema(), *checkpoint,
                                               request.metadata, request.refuses);
  WrittenCheckpoint written{.step = checkpoint->step,
                            .samples = checkpoint->samples,
                            .took = std::chrono::steady_clock::now() - began};
  checkpoint.reset();
  return_free_memory();
  if (!request.done) return;
  if (!bytes) return request.done(bytes.error());
  written.bytes = *bytes;
  request.done(written);
}

}  // namespace gossipd
