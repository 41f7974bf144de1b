#include "models/trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "models/data_file.h"
#include "models/engine.h"
#include "models/schedule.h"

namespace gossipd {

namespace {

using WallClock = std::chrono::steady_clock;

constexpr double loss_smoothing = 0.02;           // weight of the newest batch
constexpr double step_seconds_smoothing = 0.1;    // weight of the newest step
constexpr std::size_t checkpoint_requests_max = 16;

bool all_finite(std::span<const float> values) {
  // x·0 is 0 for finite x and NaN otherwise; one sum, no branch per element.
  float sum = 0;
  for (const float value : values) sum += value * 0.0f;
  return sum == 0.0f;
}

double smoothed(double before, double now, double weight, bool first) { return first ? now : before + weight * (now - before); }

}  // namespace

std::string_view to_string(TrainerState state) {
  switch (state) {
    case TrainerState::idle: return "idle";
    case TrainerState::holding: return "holding";
    case TrainerState::training: return "training";
    case TrainerState::finished: return "finished";
    case TrainerState::not_finite: return "not-finite";
    case TrainerState::failed: return "failed";
  }
  return "";
}

class Trainer::Implementation {
 public:
  Implementation(const Job& job, const TrainerOptions& options, std::unique_ptr<Engine> engine)
      : job_(job), options_(options), engine_(std::move(engine)), batch_(job.batch), budget_samples_(job.budget_samples) {
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
  void raise_own_samples(Samples at_least);
  void request_evaluation();
  void write_checkpoint(CheckpointRequest);
  TrainerStatus status() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using SharedCheckpoint = std::shared_ptr<const Checkpoint>;  // shared: written and evaluated at once

  // What other threads ask of the training thread; taken whole at a step boundary.
  struct Inbox {
    std::optional<Update> update;
    bool recall = false;
    Samples own_samples_at_least = 0;
    bool evaluate = false;
    std::vector<CheckpointRequest> checkpoints;
    bool empty() const { return !update && !recall && own_samples_at_least == 0 && !evaluate && checkpoints.empty(); }
  };
  // The exchange's buffer while it is with us.
  struct Loan {
    std::vector<float> buffer;
    Step due = 0;
    bool recalled = false;
    std::optional<Snapshot> snapshot = std::nullopt;  // without its model, while the engine copies that into the buffer
  };

  // Training thread.
  void train();
  [[nodiscard]] bool at_boundary(Inbox);  // whether to step
  void apply(Update);
  void keep_local(std::span<float> values);
  void take_checkpoints(std::vector<CheckpointRequest>);
  void one_step();
  void begin_snapshot();
  void return_loan();
  void settle();
  void fail(const std::exception&);
  [[nodiscard]] TrainerState state() const;
  [[nodiscard]] double learning_rate() const { return learning_rate_at(job_, cluster_samples(), budget_samples_.load()) * rate_scale_; }
  [[nodiscard]] Samples cluster_samples() const { return samples_ + others_samples_.load(); }
  void publish_status(TrainerState);
  SharedCheckpoint capture();

  // Evaluation thread.
  void assist();
  void evaluate(SharedCheckpoint, bool asked_for);
  void write(const CheckpointRequest&, SharedCheckpoint);

  const Job job_;
  const TrainerOptions options_;
  const std::unique_ptr<Engine> engine_;
  Callbacks callbacks_;
  std::thread training_thread_;
  std::thread evaluation_thread_;

  // Owned by the training thread while it runs, by the owner otherwise.
  Step step_ = 0;
  Samples samples_ = 0;
  Samples data_position_ = 0;
  std::uint32_t batch_ = 0;    // samples per step, by the last update
  double rate_scale_ = 1;      // likewise
  double loss_ = 0;
  double step_seconds_ = 0;
  bool first_step_ = true;
  bool holding_ = false;       // waits for the first give()
  bool told_to_train_ = true;
  bool not_finite_ = false;
  bool failed_ = false;
  bool end_evaluated_ = false;
  Samples next_evaluation_ = 0;
  std::optional<Loan> loan_;

  std::atomic<Samples> others_samples_{0};
  std::atomic<Samples> budget_samples_;
  std::atomic<bool> cancel_evaluation_{false};

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable training_wakes_;
  std::condition_variable evaluation_wakes_;
  bool running_ = false;
  bool stop_training_ = false;
  bool stop_evaluation_ = false;
  Inbox inbox_;
  SharedCheckpoint to_evaluate_;   // the newest only
  bool to_evaluate_asked_for_ = false;
  SharedCheckpoint last_evaluated_;
  std::deque<std::pair<CheckpointRequest, SharedCheckpoint>> to_write_;
  TrainerStatus status_;
};

// ---- owner ----

std::optional<Error> Trainer::Implementation::restore(const Checkpoint& checkpoint) {
  GOSSIPD_ASSERT(!training_thread_.joinable());
  const std::uint64_t floats = engine_->schema().floats();
  if (checkpoint.job != job_.hash() || checkpoint.model.size() != floats || !fits(checkpoint.optimizer, job_.optimizer, floats))
    return Error{"foreign-checkpoint", "the checkpoint belongs to job " + to_hex(checkpoint.job) + ", this is job " +
                                           to_hex(job_.hash()) + "; start in another state directory"};
  if (loan_) loan_->snapshot.reset();  // was of another model
  engine_->replace_model(checkpoint.model);
  engine_->restore_optimizer(checkpoint.optimizer);
  step_ = checkpoint.step;
  samples_ = checkpoint.samples;
  data_position_ = checkpoint.data_position;
  loss_ = checkpoint.loss;
  first_step_ = checkpoint.step == 0;
  others_samples_.store(std::max(others_samples_.load(), checkpoint.others_samples));
  publish_status(TrainerState::idle);
  return std::nullopt;
}

void Trainer::Implementation::start(Callbacks callbacks, bool hold) {
  GOSSIPD_ASSERT(!training_thread_.joinable());
  callbacks_ = std::move(callbacks);
  holding_ = hold;
  end_evaluated_ = false;
  if (job_.evaluate_every_samples > 0)
    next_evaluation_ = (cluster_samples() / job_.evaluate_every_samples + 1) * job_.evaluate_every_samples;
  cancel_evaluation_.store(false);
  const Lock lock(mutex_);
  running_ = true;
  stop_training_ = stop_evaluation_ = false;
  evaluation_thread_ = std::thread([this] { assist(); });
  training_thread_ = std::thread([this] { train(); });
}

void Trainer::Implementation::stop() {
  if (!training_thread_.joinable()) return;
  {
    const Lock lock(mutex_);
    stop_training_ = true;
    training_wakes_.notify_all();
  }
  training_thread_.join();
  cancel_evaluation_.store(true);
  {
    const Lock lock(mutex_);
    stop_evaluation_ = true;
    to_evaluate_.reset();
    to_evaluate_asked_for_ = false;
    evaluation_wakes_.notify_all();
  }
  evaluation_thread_.join();
  settle();
  publish_status(TrainerState::idle);
  // Requests that came after the threads looked for the last time.
  Inbox late;
  std::vector<std::pair<CheckpointRequest, SharedCheckpoint>> unwritten;
  {
    const Lock lock(mutex_);
    running_ = false;
    late = std::exchange(inbox_, Inbox{});
    inbox_.update = std::exchange(late.update, std::nullopt);  // kept for the next start()
    for (auto& pair : to_write_) unwritten.push_back(std::move(pair));
    to_write_.clear();
  }
  samples_ = std::max(samples_, late.own_samples_at_least);
  for (auto& [request, checkpoint] : unwritten) write(request, checkpoint);
  for (CheckpointRequest& request : late.checkpoints) write(request, capture());
}

// ---- any thread ----

void Trainer::Implementation::give(Update update) {
  GOSSIPD_ASSERT(update.values.size() == engine_->schema().floats());
  const Lock lock(mutex_);
  GOSSIPD_ASSERT(!inbox_.update);
  inbox_.update = std::move(update);
  training_wakes_.notify_all();
}

void Trainer::Implementation::recall() {
  const Lock lock(mutex_);
  inbox_.recall = true;
  training_wakes_.notify_all();
}

void Trainer::Implementation::raise_own_samples(Samples at_least) {
  const Lock lock(mutex_);
  inbox_.own_samples_at_least = std::max(inbox_.own_samples_at_least, at_least);
  training_wakes_.notify_all();
}

void Trainer::Implementation::set_budget(Samples samples) {
  const Lock lock(mutex_);
  budget_samples_.store(samples);
  training_wakes_.notify_all();
}

void Trainer::Implementation::request_evaluation() {
  const Lock lock(mutex_);
  inbox_.evaluate = true;
  training_wakes_.notify_all();
}

void Trainer::Implementation::write_checkpoint(CheckpointRequest request) {
  SharedCheckpoint checkpoint;
  std::optional<Error> refused;
  {
    const Lock lock(mutex_);
    const bool evaluated = request.model == CheckpointRequest::Model::last_evaluated;
    if (evaluated && !last_evaluated_) {
      refused = Error{"not-evaluated", request.path.string() + ": not written: no model has been evaluated yet"};
    } else if (inbox_.checkpoints.size() + to_write_.size() >= checkpoint_requests_max) {
      refused = Error{"busy", request.path.string() + ": not written: " + std::to_string(checkpoint_requests_max) +
                                  " checkpoints are waiting already; is the disk that slow?"};
    } else if (!running_) {
      checkpoint = evaluated ? last_evaluated_ : capture();
    } else if (evaluated) {
      to_write_.emplace_back(std::move(request), last_evaluated_);
      evaluation_wakes_.notify_all();
      return;
    } else {
      inbox_.checkpoints.push_back(std::move(request));
      training_wakes_.notify_all();
      return;
    }
  }
  if (!refused)
    write(request, checkpoint);
  else if (request.done)
    request.done(*refused);
}

TrainerStatus Trainer::Implementation::status() const {
  const Lock lock(mutex_);
  return status_;
}

// ---- training thread ----

TrainerState Trainer::Implementation::state() const {
  if (failed_) return TrainerState::failed;
  if (not_finite_) return TrainerState::not_finite;
  if (holding_) return TrainerState::holding;
  if (cluster_samples() >= budget_samples_.load()) return TrainerState::finished;
  return told_to_train_ ? TrainerState::training : TrainerState::holding;
}

void Trainer::Implementation::train() {
  engine_->prepare_thread(options_.nice);
  bool stepping = true;  // otherwise everything is done until somebody asks for something
  while (true) {
    Inbox inbox;
    bool stop = false;
    {
      Lock lock(mutex_);
      if (!stepping) training_wakes_.wait(lock, [&] { return stop_training_ || !inbox_.empty(); });
      stop = stop_training_;
      inbox = std::exchange(inbox_, Inbox{});
    }
    try {
      stepping = at_boundary(std::move(inbox));
      if (stop) return;
      if (stepping) one_step();
    } catch (const std::exception& error) {
      fail(error);
      stepping = false;
      if (stop) return;
    }
  }
}

// An update first, so that a checkpoint, an evaluation or a snapshot of this boundary has it in.
bool Trainer::Implementation::at_boundary(Inbox inbox) {
  if (inbox.update && !failed_) apply(std::move(*inbox.update));
  if (inbox.recall && loan_) loan_->recalled = true;
  samples_ = std::max(samples_, inbox.own_samples_at_least);
  take_checkpoints(std::move(inbox.checkpoints));
  if (failed_) return false;
  const TrainerState now = state();
  const bool asked_for = inbox.evaluate;
  publish_status(now);  // before anybody hears of it by a callback
  if (now == TrainerState::training) end_evaluated_ = false;
  if (now == TrainerState::finished && !end_evaluated_) inbox.evaluate = end_evaluated_ = true;
  if (job_.evaluate_every_samples > 0 && now == TrainerState::training && cluster_samples() >= next_evaluation_) {
    next_evaluation_ = (cluster_samples() / job_.evaluate_every_samples + 1) * job_.evaluate_every_samples;
    inbox.evaluate = true;
  }
  if (inbox.evaluate && options_.evaluate && !not_finite_) {
    SharedCheckpoint checkpoint = capture();
    const Lock lock(mutex_);
    to_evaluate_ = std::move(checkpoint);
    to_evaluate_asked_for_ |= asked_for;
    evaluation_wakes_.notify_all();
  }
  if (loan_) {
    const bool at_once = loan_->recalled || now != TrainerState::training;
    if (!loan_->snapshot && (at_once || step_ >= loan_->due)) begin_snapshot();
    if (loan_->snapshot && at_once) engine_->settle();
    if (loan_->snapshot && engine_->copied()) return_loan();
  }
  return now == TrainerState::training && !not_finite_;
}

void Trainer::Implementation::take_checkpoints(std::vector<CheckpointRequest> requests) {
  if (requests.empty()) return;
  SharedCheckpoint checkpoint;
  try {
    checkpoint = capture();
  } catch (const std::exception& error) {
    for (const CheckpointRequest& request : requests)
      if (request.done) request.done(Error{"device-failed", request.path.string() + ": not written: the model cannot be read from " +
                                                                engine_->device() + ": " + error.what()});
    if (!failed_) throw;
    return;
  }
  const Lock lock(mutex_);
  for (CheckpointRequest& request : requests) to_write_.emplace_back(std::move(request), checkpoint);
  evaluation_wakes_.notify_all();
}

void Trainer::Implementation::apply(Update update) {
  GOSSIPD_ASSERT(!loan_);
  if (update.replace) {
    keep_local(update.values);
    engine_->replace_model(update.values);
    engine_->restore_optimizer({});
    not_finite_ = !all_finite(update.values);
  } else if (!not_finite_) {
    engine_->add_to_model(update.values);
  }
  holding_ = false;
  told_to_train_ = update.training;
  const std::uint32_t batch = update.batch > 0 ? update.batch : job_.batch;
  if (batch != batch_) step_seconds_ = 0;  // is of one batch
  batch_ = batch;
  rate_scale_ = update.rate_scale;
  loan_ = Loan{std::move(update.values), step_ + update.steps_until_snapshot};
}

// A neighbour's model holds nothing where segments never leave their node.
void Trainer::Implementation::keep_local(std::span<float> values) {
  const auto& segments = engine_->schema().segments();
  const auto is_local = [](const Segment& segment) { return segment.kind == SegmentKind::local; };
  if (std::ranges::none_of(segments, is_local)) return;
  std::vector<float> own(values.size());
  engine_->copy_model(own);
  for (const Segment& segment : segments)
    if (is_local(segment))
      std::ranges::copy(std::span(own).subspan(segment.offset, segment.size), values.begin() + static_cast<std::ptrdiff_t>(segment.offset));
}

void Trainer::Implementation::one_step() {
  const auto began = WallClock::now();
  const double rate = learning_rate();
  const double loss = engine_->step(data_position_, rate, batch_);
  ++step_;
  samples_ += batch_;
  data_position_ += batch_;
  if (std::isfinite(loss))
    loss_ = smoothed(loss_, loss, loss_smoothing, first_step_);
  else
    not_finite_ = true;
  if (options_.min_step_ms > 0) {
    const auto until = began + std::chrono::duration_cast<WallClock::duration>(std::chrono::duration<double, std::milli>(options_.min_step_ms));
    Lock lock(mutex_);
    training_wakes_.wait_until(lock, until, [&] { return stop_training_; });
  }
  const double wall = std::chrono::duration<double>(WallClock::now() - began).count();
  step_seconds_ = smoothed(step_seconds_, wall, step_seconds_smoothing, step_seconds_ == 0);
  first_step_ = false;
}

void Trainer::Implementation::begin_snapshot() {
  Snapshot& snapshot = loan_->snapshot.emplace();
  engine_->begin_copy(loan_->buffer);
  snapshot.step = step_;
  snapshot.samples = samples_;
  snapshot.loss = loss_;
  snapshot.learning_rate = learning_rate();
  snapshot.learning_rate_peak = learning_rate_peak(job_) * rate_scale_;
  snapshot.step_seconds = step_seconds_;
  snapshot.batch = batch_;
  snapshot.job_batch = job_.batch;
}

void Trainer::Implementation::return_loan() {
  Snapshot snapshot = std::move(*loan_->snapshot);
  snapshot.model = std::move(loan_->buffer);
  loan_.reset();
  if (!all_finite(snapshot.model)) not_finite_ = true;
  if (not_finite_) publish_status(TrainerState::not_finite);
  snapshot.finite = !not_finite_;
  if (callbacks_.on_snapshot) callbacks_.on_snapshot(std::move(snapshot));
}

// The loan's buffer may be read or written by the engine until then.
void Trainer::Implementation::settle() {
  try {
    engine_->settle();
  } catch (const std::exception&) {
    failed_ = true;  // whoever asks for a checkpoint now hears of it
  }
}

void Trainer::Implementation::fail(const std::exception& error) {
  failed_ = true;
  publish_status(TrainerState::failed);
  if (!callbacks_.on_failure) return;
  if (dynamic_cast<const DataError*>(&error) != nullptr)
    callbacks_.on_failure(Error{"bad-data", std::string(error.what()) + "; put it right, then start gossipd again: it goes on from its checkpoint"});
  else if (dynamic_cast<const OutOfMemory*>(&error) != nullptr)
    callbacks_.on_failure(Error{"device-failed", "training on " + engine_->device() + " ran out of memory (batch of " + std::to_string(batch_) +
                                                     "): " + error.what() + "; give this node a smaller batch (balance.enabled with balance.batch_max) or " +
                                                     "another trainer.device, or the job a micro_batch under [training]; then restart gossipd, it goes on from its checkpoint"});
  else
    callbacks_.on_failure(Error{"device-failed", "training on " + engine_->device() + " failed: " + error.what() +
                                                     "; put it right or choose another trainer.device, then restart gossipd: it goes on from its checkpoint"});
}

void Trainer::Implementation::publish_status(TrainerState state) {
  const double rate = learning_rate();
  const Lock lock(mutex_);
  status_ = {state, step_, samples_, data_position_, loss_, rate, step_seconds_};
}

Trainer::Implementation::SharedCheckpoint Trainer::Implementation::capture() {
  auto out = std::make_shared<Checkpoint>();
  out->model.resize(engine_->schema().floats());
  engine_->copy_model(out->model);
  out->optimizer = engine_->optimizer_state();
  out->step = step_;
  out->samples = samples_;
  out->others_samples = others_samples_.load();
  out->data_position = data_position_;
  out->shard_index = options_.shard_index;
  out->shard_count = options_.shard_count;
  out->loss = loss_;
  out->job = job_.hash();
  out->metadata["job_name"] = job_.name;
  return out;
}

// ---- evaluation thread ----

void Trainer::Implementation::assist() {
  engine_->prepare_thread(options_.nice);
  while (true) {
    std::optional<std::pair<CheckpointRequest, SharedCheckpoint>> writing;
    SharedCheckpoint evaluating;
    bool asked_for = false;
    {
      Lock lock(mutex_);
      evaluation_wakes_.wait(lock, [&] { return stop_evaluation_ || to_evaluate_ || !to_write_.empty(); });
      if (!to_write_.empty()) {
        writing = std::move(to_write_.front());
        to_write_.pop_front();
      } else if (to_evaluate_) {
        evaluating = std::exchange(to_evaluate_, nullptr);
        asked_for = std::exchange(to_evaluate_asked_for_, false);
      } else {
        return;  // stopped, and nothing is left to write
      }
    }
    if (writing) write(writing->first, writing->second);
    if (evaluating) evaluate(std::move(evaluating), asked_for);
  }
}

void Trainer::Implementation::evaluate(SharedCheckpoint checkpoint, bool asked_for) {
  const auto began = WallClock::now();
  std::optional<Figures> figures;
  try {
    figures = engine_->evaluate(checkpoint->model, cancel_evaluation_);
  } catch (const std::exception& error) {
    if (callbacks_.on_failure)
      callbacks_.on_failure(Error{"evaluation-failed", "evaluating on " + engine_->device() + " failed: " + error.what()});
    return;
  }
  if (!figures) return;
  Evaluation out{*figures, checkpoint->step, checkpoint->samples + checkpoint->others_samples,
                 std::chrono::duration<double>(WallClock::now() - began).count(), asked_for};
  {
    const Lock lock(mutex_);
    last_evaluated_ = std::move(checkpoint);
  }
  if (callbacks_.on_evaluation) callbacks_.on_evaluation(out);
}

void Trainer::Implementation::write(const CheckpointRequest& request, SharedCheckpoint checkpoint) {
  Checkpoint complete = *checkpoint;
  complete.metadata.insert(request.metadata.begin(), request.metadata.end());
  auto written = gossipd::write_checkpoint(request.path, engine_->schema(), complete);
  if (request.done) request.done(std::move(written));
}

// ---- the face ----

Trainer::Trainer(std::unique_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
Trainer::~Trainer() = default;

std::unique_ptr<Trainer> Trainer::with_engine(const Job& job, const TrainerOptions& options, std::unique_ptr<Engine> engine) {
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Implementation>(job, options, std::move(engine))));
}

const Schema& Trainer::schema() const { return implementation_->engine().schema(); }
const Job& Trainer::job() const { return implementation_->job(); }
std::string Trainer::device() const { return implementation_->engine().device(); }
Samples Trainer::shard_samples() const { return implementation_->engine().shard_samples(); }
void Trainer::copy_model(std::span<float> out) const { implementation_->engine().copy_model(out); }
std::optional<Error> Trainer::restore(const Checkpoint& checkpoint) { return implementation_->restore(checkpoint); }
void Trainer::start(Callbacks callbacks, bool hold) { implementation_->start(std::move(callbacks), hold); }
void Trainer::stop() { implementation_->stop(); }
void Trainer::give(Update update) { implementation_->give(std::move(update)); }
void Trainer::recall() { implementation_->recall(); }
void Trainer::set_others_samples(Samples samples) { implementation_->set_others_samples(samples); }
void Trainer::set_budget(Samples samples) { implementation_->set_budget(samples); }
void Trainer::raise_own_samples(Samples at_least) { implementation_->raise_own_samples(at_least); }
void Trainer::request_evaluation() { implementation_->request_evaluation(); }
void Trainer::write_checkpoint(CheckpointRequest request) { implementation_->write_checkpoint(std::move(request)); }
TrainerStatus Trainer::status() const { return implementation_->status(); }

}  // namespace gossipd
