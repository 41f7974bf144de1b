// The training thread, its owner and the face; evaluation and checkpoints are in
// trainer_assistant.cpp.
#include <algorithm>

#include "core/codec/kernels.h"
#include "core/model/finite.h"
#include "models/files/data_file.h"
#include "models/job/schedule.h"
#include "models/training/trainer_implementation.h"

namespace gossipd {

namespace {

// of a pass over a set that nodes divide: more is not made up for by revisiting
constexpr Samples far_behind_part = 8;

TrainerState state_of(StepLoop::State state) {
  switch (state) {
    case StepLoop::State::holding: return TrainerState::holding;
    case StepLoop::State::training: return TrainerState::training;
    case StepLoop::State::finished: return TrainerState::finished;
    case StepLoop::State::not_finite: return TrainerState::not_finite;
  }
  return TrainerState::failed;
}

// What has ended training, and the way out.
Error failure_of(const std::exception& error, const std::string& device, std::uint32_t batch) {
  const std::string what = error.what();
  const auto* no_room = dynamic_cast<const OutOfMemory*>(&error);
  const bool bare = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (const auto* data = dynamic_cast<const DataError*>(&error))
    return {data->code(), what +
                              "; put it right, then start gossipd again: it goes on from its "
                              "checkpoint"};
  if (bare || (no_room != nullptr && no_room->memory() == OutOfMemory::Memory::main))
    return {"device-failed",
            "training on " + device + " ran out of memory (batch of " + std::to_string(batch) +
                "): " + (bare ? "main memory: " : "") + what +
                "; free some on this machine, raise a limit (ulimit -v, a container's), or give "
                "the job a smaller batch or model; then restart gossipd, it goes on from its "
                "checkpoint"};
  if (no_room != nullptr)
    return {"device-failed",
            "training on " + device + " ran out of memory (batch of " + std::to_string(batch) +
                "): " + what +
                "; give this node a smaller batch (balance.enabled with balance.batch_max) or "
                "another trainer.device, or the job a micro_batch under [training]; then restart "
                "gossipd, it goes on from its checkpoint"};
  return {"device-failed", "training on " + device + " failed: " + what +
                               "; put it right or choose another trainer.device, then restart "
                               "gossipd: it goes on from its checkpoint"};
}

}  // namespace

std::string_view to_string(TrainerState state) {
  switch (state) {
    case TrainerState::idle: return "idle";
    case TrainerState::holding: return "holding";
    case TrainerState::training: return "training";
    case TrainerState::waiting_for_trainer: return "waiting-for-trainer";
    case TrainerState::finished: return "finished";
    case TrainerState::not_finite: return "not-finite";
    case TrainerState::failed: return "failed";
  }
  return "";
}

// ---- owner ----

std::optional<Error> Trainer::Implementation::restore(const Checkpoint& checkpoint) {
  GOSSIPD_ASSERT(!training_thread_.joinable());
  const std::uint64_t floats = engine_->schema().floats();
  if (checkpoint.job != job_.hash() || checkpoint.model.size() != floats ||
      !fits(checkpoint.optimizer, job_.optimizer, floats))
    return Error{"foreign-checkpoint", "the checkpoint belongs to job " + to_hex(checkpoint.job) +
                                           ", this is job " + to_hex(job_.hash()) +
                                           "; start in another state directory"};
  engine_->replace_model(checkpoint.model);
  engine_->restore_optimizer(checkpoint.optimizer);
  loop_.restore({.step = checkpoint.step,
                 .samples = checkpoint.samples,
                 .data_position = checkpoint.data_position},
                checkpoint.step > 0 ? std::optional(checkpoint.loss) : std::nullopt);
  others_samples_.store(std::max(others_samples_.load(), checkpoint.others_samples));
  publish_status(TrainerState::idle);
  return std::nullopt;
}

void Trainer::Implementation::start(Callbacks callbacks, bool hold) {
  GOSSIPD_ASSERT(!training_thread_.joinable());
  callbacks_ = std::move(callbacks);
  loop_.start(hold);
  end_evaluated_ = false;
  if (job_.evaluate_every_samples > 0)
    next_evaluation_ =
        (cluster_samples() / job_.evaluate_every_samples + 1) * job_.evaluate_every_samples;
  cancel_evaluation_.store(false);
  const Lock lock(mutex_);
  running_ = true;
  stop_training_ = stop_evaluation_ = stop_writing_ = false;
  writing_thread_ = std::thread([this] { write_checkpoints(); });
  evaluation_thread_ = std::thread([this] { assist(); });
  training_thread_ = std::thread([this] { train(); });
}

void Trainer::Implementation::stop() {
  if (!training_thread_.joinable()) return;
  {
    const Lock lock(mutex_);
    stop_training_ = true;
    wake_training();
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
  {
    const Lock lock(mutex_);
    stop_writing_ = true;
    writing_wakes_.notify_all();
  }
  writing_thread_.join();
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
    inbox_.division = std::exchange(late.division, std::nullopt);
    for (auto& pair : to_write_) unwritten.push_back(std::move(pair));
    to_write_.clear();
  }
  loop_.raise_samples(late.own_samples_at_least);
  for (auto& [request, checkpoint] : unwritten) write(request, checkpoint);
  for (CheckpointRequest& request : late.checkpoints) write(request, capture());
}

// ---- any thread ----

void Trainer::Implementation::give(Update update) {
  GOSSIPD_ASSERT(update.values.size() == engine_->schema().floats());
  const Lock lock(mutex_);
  GOSSIPD_ASSERT(!inbox_.update);
  inbox_.update = std::move(update);
  wake_training();
}

void Trainer::Implementation::recall() {
  const Lock lock(mutex_);
  inbox_.recall = true;
  wake_training();
}

// With mutex_ held.
void Trainer::Implementation::wake_training() {
  training_wakes_.notify_all();
  if (OutsideSteps* const outside = engine_->outside()) outside->wake();
}

void Trainer::Implementation::set_division(std::vector<DivisionMember> members) {
  if (job_.data.division != DataSpec::Division::shared && engine_->outside() == nullptr) return;
  const Lock lock(mutex_);
  inbox_.division = std::move(members);
  wake_training();
}

void Trainer::Implementation::raise_own_samples(Samples at_least) {
  const Lock lock(mutex_);
  inbox_.own_samples_at_least = std::max(inbox_.own_samples_at_least, at_least);
  wake_training();
}

void Trainer::Implementation::set_remembered(Samples samples, Step step) {
  {
    const Lock lock(mutex_);
    if (remembered_.samples == samples && remembered_.step == step) return;
    remembered_ = {.step = step, .samples = samples};
  }
  if (engine_->outside() != nullptr) engine_->outside()->wake();
}

void Trainer::Implementation::set_budget(Samples samples) {
  const Lock lock(mutex_);
  budget_samples_.store(samples);
  wake_training();
}

void Trainer::Implementation::request_evaluation() {
  const Lock lock(mutex_);
  inbox_.evaluate = true;
  wake_training();
}

TrainerStatus Trainer::Implementation::status() const {
  const Lock lock(mutex_);
  return status_;
}

// ---- training thread ----

void Trainer::Implementation::train() {
  engine_->prepare_thread(options_.nice);
  const bool is_outside = engine_->outside() != nullptr;
  bool stepping = true;  // otherwise everything is done until somebody asks for something
  while (true) {
    Inbox inbox;
    bool stop = false;
    {
      Lock lock(mutex_);
      if (!stepping && (!is_outside || failed_))
        training_wakes_.wait(lock, [&] { return stop_training_ || !inbox_.empty(); });
      stop = stop_training_;
      inbox = std::exchange(inbox_, Inbox{});
      if (inbox.update && !engine_->takes_updates()) std::swap(inbox_.update, inbox.update);
    }
    try {
      stepping = at_boundary(std::move(inbox));
      if (stop) return;
      if (is_outside)
        meet_outside();
      else if (stepping)
        one_step();
    } catch (const std::exception& error) {
      fail(error);
      stepping = false;
      if (stop) return;
    }
  }
}

// An update first, so that a checkpoint, an evaluation or a snapshot of this boundary has it in.
bool Trainer::Implementation::at_boundary(Inbox inbox) {
  if (inbox.division) divide(std::move(*inbox.division));
  if (inbox.update && !failed_) apply(std::move(*inbox.update));
  if (inbox.recall) loop_.request_snapshot();
  loop_.raise_samples(inbox.own_samples_at_least);
  take_checkpoints(std::move(inbox.checkpoints));
  if (failed_) return false;
  const TrainerState now = state_of(
      loop_.at_boundary({.others = others_samples_.load(), .budget = budget_samples_.load()}));
  const bool asked_for = inbox.evaluate;
  const bool alone = engine_->outside() != nullptr && !outside_present_ &&
                     (now == TrainerState::training || now == TrainerState::holding);
  // Nobody makes the steps that the snapshot is due after, and neighbours wait for their turn.
  if (alone) loop_.request_snapshot();
  // before anybody hears of it by a callback
  publish_status(alone ? TrainerState::waiting_for_trainer : now);
  if (now == TrainerState::training) end_evaluated_ = false;
  if (now == TrainerState::finished && !end_evaluated_) inbox.evaluate = end_evaluated_ = true;
  if (job_.evaluate_every_samples > 0 && now == TrainerState::training &&
      cluster_samples() >= next_evaluation_) {
    next_evaluation_ =
        (cluster_samples() / job_.evaluate_every_samples + 1) * job_.evaluate_every_samples;
    inbox.evaluate = true;
  }
  if (inbox.evaluate && options_.evaluate && loop_.is_finite()) {
    SharedCheckpoint checkpoint = capture();
    const Lock lock(mutex_);
    to_evaluate_ = std::move(checkpoint);
    to_evaluate_asked_for_ |= asked_for;
    evaluation_wakes_.notify_all();
  }
  serve_snapshot();
  return loop_.state() == StepLoop::State::training;  // also while a snapshot waits to be begun
}

void Trainer::Implementation::apply(Update update) {
  if (update.replace) {
    keep_local(update.values);
    engine_->replace_model(update.values);
    engine_->restore_optimizer({});
  } else if (loop_.is_finite()) {
    engine_->add_to_model(update.values);
  }
  loop_.take(std::move(update));
}

// A division without this node leaves things as they are: it will not step.
void Trainer::Implementation::divide(std::vector<DivisionMember> members) {
  std::vector<NodeId> ids;
  for (const DivisionMember& member : members) ids.push_back(member.id);
  std::ranges::sort(ids);
  if (!part_) {
    trainers_ = std::move(ids);
    return;
  }
  const auto takes_part = [this](const std::vector<NodeId>& in) {
    return std::ranges::binary_search(in, options_.node);
  };
  const bool comes = takes_part(ids) && !takes_part(part_->members);
  const bool others_come = !std::ranges::includes(part_->members, ids);
  const bool far_behind =
      cluster_samples() > loop_.data_position() + part_->status.samples / far_behind_part;
  // Alone there is nobody whose work could be done twice, and a restart goes on where its model is.
  part_->catch_up |= ids.size() > 1 && (comes || (others_come && far_behind));
  part_->owners.divide(std::move(members));
  part_->members = std::move(ids);
  std::vector<bool> owned = part_->owners.owned_by(options_.node);
  DivisionStatus& status = part_->status;
  status.members = part_->members.size();
  status.buckets_owned = static_cast<std::size_t>(std::ranges::count(owned, true));
  status.samples_owned = samples_in(owned, status.samples);
  if (!takes_part(part_->members) || owned == part_->owned) return;
  part_->owned = std::move(owned);
  engine_->restrict_to(
      status.buckets_owned > 0 ? std::make_shared<const std::vector<bool>>(part_->owned) : nullptr);
}

// A neighbour's model holds nothing where segments never leave their node.
void Trainer::Implementation::keep_local(std::span<float> values) {
  const auto& segments = engine_->schema().segments();
  const auto is_local = [](const Segment& segment) { return segment.kind == SegmentKind::local; };
  if (std::ranges::none_of(segments, is_local)) return;
  std::vector<float> own(values.size());
  engine_->copy_model(own);
  for (const Segment& segment : segments)
    if (is_local(segment) &&
        kernels().all_finite(std::span<const float>(own).subspan(segment.offset, segment.size)))
      std::ranges::copy(std::span(own).subspan(segment.offset, segment.size),
                        values.begin() + static_cast<std::ptrdiff_t>(segment.offset));
}

void Trainer::Implementation::one_step() {
  const auto began = WallClock::now();
  if (part_ && std::exchange(part_->catch_up, false)) loop_.skip_to(cluster_samples());
  const Samples position = loop_.data_position();
  StepLoop::MadeStep made;
  made.loss = engine_->step(position, learning_rate(), loop_.batch());
  made.next_position = engine_->next_position(position, loop_.batch());
  if (options_.min_step_ms > 0) {
    const auto until = began + std::chrono::duration_cast<WallClock::duration>(
                                   std::chrono::duration<double, std::milli>(options_.min_step_ms));
    Lock lock(mutex_);
    training_wakes_.wait_until(lock, until, [&] { return stop_training_; });
  }
  made.seconds = std::chrono::duration<double>(WallClock::now() - began).count();
  loop_.on_step(made);
}

// Instead of a step: what is said between this node and who makes them.
void Trainer::Implementation::meet_outside() {
  const StepLoop::State state = loop_.state();
  const double peak = learning_rate_peak(job_);
  OutsideSteps::Order order;
  order.training = state == StepLoop::State::training;
  order.finished = state == StepLoop::State::finished;
  order.settled = settled_.load();
  order.cluster_samples = cluster_samples();
  order.budget = budget_samples_.load();
  order.rate_factor = peak > 0 ? scheduled_rate() / peak : 1;
  order.step = loop_.step();
  order.samples = loop_.samples();
  {
    const Lock lock(mutex_);
    order.remembered_step = remembered_.step;
    order.remembered_samples = remembered_.samples;
  }
  order.trainers = trainers_;
  order.members = members_.load();
  const OutsideSteps::News news = engine_->outside()->meet(order);
  for (const std::string& event : news.events)
    if (callbacks_.on_event) callbacks_.on_event(event);
  if (news.step) {
    loop_.on_outside_steps({.step = *news.step,
                            .samples = news.samples,
                            .loss = news.loss,
                            .seconds = news.step_seconds});
    if (!news.finite) loop_.on_not_finite();
    outside_rates_.now = news.learning_rate.value_or(outside_rates_.now);
    outside_rates_.peak = std::max(outside_rates_.peak, outside_rates_.now);
  }
  if (news.report) on_report(*news.report);
  if (news.present == outside_present_) return;
  outside_present_ = news.present;
  if (callbacks_.on_outside) callbacks_.on_outside(news.present);
}

// Steps go on while the engine takes in an update and copies the model, also where the snapshot is
// wanted at once. The host waits only where there is no step to make.
void Trainer::Implementation::serve_snapshot() {
  const bool stepping = loop_.state() == StepLoop::State::training;
  if (loop_.next() == StepLoop::Next::begin_snapshot && (!stepping || engine_->ready_to_copy()))
    engine_->begin_copy(loop_.begin_snapshot(rates()));
  if (!loop_.is_filling()) return;
  if (!stepping && engine_->outside() == nullptr) engine_->settle();
  if (!engine_->copied()) return;
  const std::optional<bool> finite = engine_->copy_is_finite();
  if (!(finite ? *finite : is_finite(engine_->schema(), loop_.buffer()))) loop_.on_not_finite();
  Snapshot snapshot = loop_.hand_over();
  if (!snapshot.finite) publish_status(TrainerState::not_finite);
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
  callbacks_.on_failure(failure_of(error, engine_->device(), loop_.batch()));
}

void Trainer::Implementation::publish_status(TrainerState state) {
  const double rate = learning_rate();
  std::optional<DivisionStatus> division;
  if (part_) division = part_->status;
  const Lock lock(mutex_);
  status_ = {state,        loop_.step(), loop_.samples(),      loop_.data_position(),
             loop_.loss(), rate,         loop_.step_seconds(), division};
}

// ---- the face ----

Trainer::Trainer(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
Trainer::~Trainer() = default;

std::unique_ptr<Trainer> Trainer::with_engine(const Job& job, const TrainerOptions& options,
                                              std::unique_ptr<Engine> engine) {
  return std::unique_ptr<Trainer>(
      new Trainer(std::make_unique<Implementation>(job, options, std::move(engine))));
}

const Schema& Trainer::schema() const { return implementation_->engine().schema(); }
const Job& Trainer::job() const { return implementation_->job(); }
std::string Trainer::device() const { return implementation_->engine().device(); }
Samples Trainer::shard_samples() const { return implementation_->engine().shard_samples(); }
void Trainer::copy_model(std::span<float> out) const { implementation_->engine().copy_model(out); }
std::optional<Error> Trainer::restore(const Checkpoint& checkpoint) {
  return implementation_->restore(checkpoint);
}
void Trainer::start(Callbacks callbacks, bool hold) {
  implementation_->start(std::move(callbacks), hold);
}
void Trainer::stop() { implementation_->stop(); }
void Trainer::give(Update update) { implementation_->give(std::move(update)); }
void Trainer::recall() { implementation_->recall(); }
void Trainer::set_others_samples(Samples samples) { implementation_->set_others_samples(samples); }
void Trainer::set_division(std::vector<DivisionMember> members) {
  implementation_->set_division(std::move(members));
}
void Trainer::set_members(std::uint32_t members) { implementation_->set_members(members); }
void Trainer::set_settled(bool settled) { implementation_->set_settled(settled); }
void Trainer::set_budget(Samples samples) { implementation_->set_budget(samples); }
void Trainer::set_remembered(Samples samples, Step step) {
  implementation_->set_remembered(samples, step);
}
void Trainer::raise_own_samples(Samples at_least) { implementation_->raise_own_samples(at_least); }
void Trainer::request_evaluation() { implementation_->request_evaluation(); }
void Trainer::write_checkpoint(CheckpointRequest request) {
  implementation_->write_checkpoint(std::move(request));
}
TrainerStatus Trainer::status() const { return implementation_->status(); }

}  // namespace gossipd
