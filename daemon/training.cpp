#include "daemon/training.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "models/training/torch_engine.h"

namespace gossipd {

namespace {

constexpr std::size_t checkpoint_askers_max = 256;
constexpr Duration settled_after = std::chrono::seconds(1);

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Training::Training(EventLoop& loop, const DaemonConfig& config, const StateStore& store,
                   TrainerSocket* socket, NodeId id, Metadata metadata, Events events)
    : loop_(loop),
      config_(config),
      store_(store),
      socket_(socket),
      id_(id),
      identity_(std::move(metadata)),
      events_(std::move(events)),
      pace_(from_seconds(config.checkpoint_every_s)),
      why_on_cpu_(why_on_cpu(config.device).text),
      checkpoint_timer_(loop, [this] { on_checkpoint_due(); }),
      data_timer_(loop, [this] { start_preparing(); }),
      settled_timer_(loop, [this] {
        settled_ = true;
        trainer_->set_settled(true);
      }) {}

Training::~Training() {
  if (aside_.joinable()) aside_.join();
}

void Training::run_aside(std::function<void()> task) {
  GOSSIPD_ASSERT(!busy_);
  if (aside_.joinable()) aside_.join();  // it has posted its result already
  busy_ = true;
  aside_ = std::thread(std::move(task));
}

// ---- running
// -------------------------------------------------------------------------------------

void Training::begin(bool model_is_the_clusters) {
  begun_ = true;
  if (is_external()) {
    events_.on_trainer(false, trainer_wanted());
    trainer_->raise_own_samples(known_samples_);
  }
  model_is_the_clusters_ = model_is_the_clusters;
  trainer_->set_others_samples(others_samples_);
  if (budget_) trainer_->set_budget(*budget_);
  trainer_->set_division(division_);
  Trainer::Callbacks callbacks;
  callbacks.on_snapshot = [this](Snapshot snapshot) {
    auto shared = std::make_shared<Snapshot>(std::move(snapshot));  // the loop copies its tasks
    loop_.post([this, shared] {
      if (!stopped_) events_.on_snapshot(std::move(*shared));
    });
  };
  callbacks.on_outside = [this](bool present) {
    loop_.post([this, present] {
      if (!stopped_) events_.on_trainer(present, trainer_wanted());
    });
  };
  callbacks.on_event = [this](const std::string& words) {
    loop_.post([this, words] { events_.on_event(words); });
  };
  callbacks.on_evaluation = [this](Evaluation evaluation) {
    loop_.post([this, evaluation] { on_evaluated(evaluation); });
  };
  callbacks.on_failure = [this](Error error) {
    loop_.post([this, error] {
      failed_ = true;
      failure_ = error.text;
      events_.on_failure(error);
    });
  };
  callbacks.on_evaluation_failure = [this](Error error) {
    loop_.post([this, error] { events_.on_warning(error.text); });
  };
  callbacks.on_no_evaluation = [this] { loop_.post([this] { no_final_evaluation_ = finished_; }); };
  // The core says when to step, by the first update.
  trainer_->start(std::move(callbacks), /*hold=*/true);
  pause_checkpoints();
  if (model_is_the_clusters) write_checkpoint("current", nullptr);
}

void Training::give(Update update) {
  if (stopped_ || !begun_) return;
  const bool first_model = update.replace && !model_is_the_clusters_;
  if (update.replace) {
    model_is_the_clusters_ = true;
    writing_["current"].final_model = false;
  }
  trainer_->give(std::move(update));
  if (first_model) write_checkpoint("current", nullptr);
}

void Training::recall() {
  if (trainer_) trainer_->recall();
}

void Training::set_others_samples(Samples others) {
  others_samples_ = others;
  if (trainer_) trainer_->set_others_samples(others);
}

void Training::set_budget(Samples samples, bool goes_on) {
  budget_ = samples;
  patience_.renew();
  if (goes_on) {
    finished_ = false;
    unsettle();
  }
  if (trainer_) trainer_->set_budget(samples);
}

void Training::divide(std::vector<DivisionMember> members) {
  if (members == division_) return;
  division_ = std::move(members);
  if (begun_) trainer_->set_division(division_);
}

void Training::set_members(std::size_t members) {
  if (trainer_) trainer_->set_members(static_cast<std::uint32_t>(members));
}

void Training::read_back_model() {
  if (stopped_ || busy_ || !trainer_) return;
  run_aside([this] {
    auto model = std::make_shared<std::vector<float>>();
    auto warning = std::make_shared<std::string>();
    const auto load = [this]() -> Result<LoadedCheckpoint> {
      if (auto gone = store_.check_lock()) return *gone;
      return load_checkpoint(store_.checkpoint_path("current"), trainer_->schema(), job_hash_);
    };
    Result<LoadedCheckpoint> loaded = load();
    if (loaded)
      *model = std::move(loaded->checkpoint.model);
    else
      *warning = loaded.error().text;
    loop_.post([this, model, warning] {
      busy_ = false;
      if (stopped_) return maybe_stop();
      if (!warning->empty()) events_.on_warning(*warning);
      events_.on_restored(std::move(*model));
    });
  });
}

void Training::on_evaluated(const Evaluation& evaluation) {
  if (!model_is_the_clusters_) return;  // of no model that this node has
  last_ = Evaluated{evaluation, EventLoop::now()};
  const bool best = !best_ || evaluation.is_better_than(*best_);
  // Where accuracy stands still, a loss that falls on and on is no progress.
  patience_.on_evaluation(best && !(best_ && evaluation.ties_with(*best_)));
  if (best) best_ = evaluation;
  write_best();
  // The final file exists since the job ended; now it can say how good it is as well. An evaluation
  // that was under way then is of a model from before the final exchange. An attached trainer
  // cannot be asked for one; what it reports once the model has settled is of the final one.
  if (!stopped_ && finished_ && (evaluation.asked_for || (is_external() && settled_))) {
    final_evaluated_ = true;
    write_checkpoint("final", nullptr);
  }
  EvaluationView view{evaluation, evaluation.step, evaluation.at_samples, 0};
  events_.on_evaluation(view);
  if (!stopped_ && !finished_ && patience_.over()) events_.on_no_progress(patience_.words());
}

// Whether the last evaluation is better than what the file holds, not than all that were seen: one
// that came while a write was under way, or whose write failed, may have been missed.
void Training::write_best() {
  if (stopped_ || !last_ || !config_.checkpoint_best || writing_["best"].under_way) return;
  const auto found = checkpoints_.find("best");
  const auto held =
      found == checkpoints_.end() ? std::nullopt : evaluation_figures_of(found->second);
  if (!held || last_->evaluation.is_better_than(*held))
    start_writing("best", CheckpointRequest::Model::last_evaluated);
}

void Training::unsettle() {
  settled_ = false;
  settled_timer_.cancel();
  if (trainer_) trainer_->set_settled(false);
}

void Training::finish() {
  if (stopped_ || !begun_) return;
  finished_ = true;
  final_evaluated_ = no_final_evaluation_ = false;
  unsettle();  // also where the final model is renewed
  settled_timer_.arm_after(settled_after);
  writing_["current"].final_model = false;  // of a write under way
  write_checkpoint("current", nullptr);
  write_checkpoint("final", nullptr);
  trainer_->request_evaluation();
}

FinishWatch::Final Training::final_model() const {
  if (!finished_) return {};
  const auto on_disk = [this](const char* which) {
    const auto found = writing_.find(which);
    return !unwritten_.contains(which) && found != writing_.end() && !found->second.under_way &&
           found->second.next.empty();
  };
  // A trainer that is still there may take the final model yet, and report how good it is.
  const ExternalEngine* const external = external_.load();
  const bool is_evaluated =
      external ? settled_ && !external->has_trainer() : final_evaluated_ || no_final_evaluation_;
  return {.on_disk = on_disk("current") && on_disk("final"), .evaluated = is_evaluated};
}

std::string Training::final_model_waits_for() const {
  for (const char* which : {"final", "current"})
    if (const auto failed = write_failures_.find(which);
        finished_ && failed != write_failures_.end())
      return "the disk to take the final model: " + failed->second;
  return "";
}

// ---- checkpoints
// ---------------------------------------------------------------------------------

void Training::pause_checkpoints() {
  pace_.begin(EventLoop::now());
  checkpoint_timer_.arm_at(pace_.due());
}

void Training::on_checkpoint_due() {
  pause_checkpoints();
  for (const std::string& which : std::exchange(unwritten_, {}))
    if (!stopped_ && (which == "current" || (which == "final" && finished_)))
      write_checkpoint(which, nullptr);
  write_best();
  const bool changed = trainer_->status().step != step_of_current_;
  if (changed && model_is_the_clusters_ && !stopped_ && !failed_)
    write_checkpoint("current", nullptr);
}

void Training::write_checkpoint(const std::string& which, Written done) {
  if (!begun_ || !model_is_the_clusters_ || failed_) {
    if (done) done(Error{"no-model", "this node has no model of the cluster to write yet"});
    return;
  }
  Writing& writing = writing_[which];
  // One file is written once at a time; whoever asks meanwhile gets a write that began after
  // asking.
  if (writing.next.size() >= checkpoint_askers_max) {
    if (done)
      done(Error{"disk-slow", store_.checkpoint_path(which).string() +
                                  ": too many wait for it already; is the disk that slow?"});
    return;
  }
  if (done || writing.next.empty()) writing.next.push_back(std::move(done));
  if (!writing.under_way) start_writing(which, CheckpointRequest::Model::current);
}

Metadata Training::metadata() const {
  Metadata words = identity_;
  words["job"] = job_->canonical_text();  // so that the file alone says what model it is of
  if (best_ && best_->accuracy) words["best_accuracy"] = number_text(*best_->accuracy);
  return words;
}

void Training::start_writing(const std::string& which, CheckpointRequest::Model model) {
  Writing& writing = writing_[which];
  writing.under_way = true;
  writing.began = EventLoop::now();
  writing.now = std::exchange(writing.next, {});
  writing.final_model = finished_;
  const TrainerStatus status = trainer_->status();
  if (which == "current") step_of_current_ = status.step;

  CheckpointView view;
  view.path = store_.checkpoint_path(which).string();
  if (last_ &&
      (model == CheckpointRequest::Model::last_evaluated || (finished_ && final_evaluated_)))
    view.accuracy = last_->evaluation.accuracy, view.evaluation_loss = last_->evaluation.loss;

  CheckpointRequest request;
  request.path = view.path;
  request.metadata = metadata();
  if (view.accuracy) request.metadata["accuracy"] = number_text(*view.accuracy);
  if (view.evaluation_loss)
    request.metadata["evaluation_loss"] = number_text(*view.evaluation_loss);
  request.refuses = [this] { return store_.check_lock(); };
  request.model = model;
  if (model == CheckpointRequest::Model::last_evaluated)
    request.evaluation = last_->evaluation.number;
  request.done = [this, which, view](Result<WrittenCheckpoint> written) mutable {
    const Duration took = written ? written->took : Duration{};
    if (written) {
      view.bytes = written->bytes;
      view.step = written->step;
      view.own_samples = written->samples;
    }
    view.written_at_s = wall_clock_s();
    const std::optional<Error> error =
        written ? std::nullopt : std::optional<Error>(written.error());
    loop_.post([this, which, view, took, error] {
      if (!error && which == "current") on_current_took(took);
      on_written(which, view, error);
    });
  };
  trainer_->write_checkpoint(std::move(request));
}

void Training::on_current_took(Duration took) {
  pace_.on_written(took);
  if (!stopped_) checkpoint_timer_.arm_at(pace_.due());
}

void Training::on_written(const std::string& which, CheckpointView written,
                          std::optional<Error> error) {
  Writing& writing = writing_[which];
  writing.under_way = false;
  if (error && error->code == "superseded") return write_best();
  if (error) {
    ++checkpoints_failed_;
    unwritten_.insert(which);
    if (error->code == "state-gone") checkpoints_.clear();  // and what was in it
    write_failures_[which] = error->text;
    events_.on_warning("checkpoint " + which + " was not written: " + error->text);
  } else {
    checkpoints_[which] = written;
    unwritten_.erase(which);
    write_failures_.erase(which);
    on_disk_ = on_disk_ || which == "current";
    events_.on_checkpoint(which, written);
  }
  for (const Written& done : std::exchange(writing.now, {}))
    if (done) done(error ? Result<CheckpointView>(*error) : Result<CheckpointView>(written));
  if (stopping_trainer_)
    writing.now = std::exchange(writing.next, {});  // the last write is under way already
  else if (!writing.next.empty())
    start_writing(which, CheckpointRequest::Model::current);
  if (which == "best" && !error) write_best();
}

// ---- the end
// -------------------------------------------------------------------------------------

void Training::stop(bool model_stands, std::function<void()> done) {
  GOSSIPD_ASSERT(!stopped_);
  model_stands_ = model_stands;
  stopped_ = std::move(done);
  stop_wanted_ = true;  // before external_ is asked for, which may be made at this moment
  checkpoint_timer_.cancel();
  data_timer_.cancel();
  settled_timer_.cancel();
  if (ExternalEngine* const engine = external_.load()) engine->cancel();
  left_behind_ = busy_ && !begun_ && !is_external();  // nothing of it is to be written
  if (!busy_ || left_behind_) maybe_stop();
}

// On disk, or on its way there with nobody waiting for a later one.
bool Training::current_is_final() const {
  const auto current = writing_.find("current");
  return model_stands_ && current != writing_.end() && current->second.final_model &&
         current->second.next.empty() && !unwritten_.contains("current") &&
         trainer_->status().step == step_of_current_;
}

// With nothing under way beside the loop, the trainer can be taken down.
void Training::maybe_stop() {
  if (!begun_) return loop_.post(stopped_);
  stopping_trainer_ = true;
  // Even while an earlier write is under way: the trainer writes one after the other.
  if (model_is_the_clusters_ && !failed_ && !current_is_final()) {
    // Who waits for the write under way is told by that one, who asked since by this one.
    Writing& current = writing_["current"];
    const bool under_way = current.under_way;
    std::vector<Written> first = std::exchange(current.now, {});
    start_writing("current", CheckpointRequest::Model::current);
    if (under_way) current.next = std::exchange(current.now, std::move(first));
  }
  run_aside([this] {
    trainer_->stop();  // writes what was asked for first
    loop_.post([this] {
      busy_ = false;
      stopped_();
    });
  });
}

double Training::checkpoint_seconds(Instant now) const {
  double longest = 0;
  for (const auto& [which, writing] : writing_)
    if (writing.under_way) longest = std::max(longest, seconds(now - writing.began));
  return longest;
}

void Training::describe(StatusView& view, Instant now) const {
  if (trainer_) {
    const TrainerStatus status = trainer_->status();
    view.trainer.state = to_string(status.state);
    view.trainer.device = trainer_->device();
    view.trainer.device_note = view.trainer.device == "cpu" ? why_on_cpu_ : "";
    view.trainer.shard_samples =
        status.division ? status.division->samples_owned : trainer_->shard_samples();
    view.trainer.division = status.division;
    view.trainer.data_position = status.data_position;
  } else if (busy_) {
    view.trainer.state = "preparing";
  }
  view.model_floats = model_floats();
  view.trainer.failure = failure_;
  if (last_) {
    const Evaluation& e = last_->evaluation;
    view.evaluation = EvaluationView{e, e.step, e.at_samples, seconds(now - last_->at)};
  }
  view.best = best_;
  view.checkpoints = checkpoints_;
  view.checkpoints_failed = checkpoints_failed_;
}

}  // namespace gossipd
