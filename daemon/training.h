// daemon/training.h - the trainer's life inside the daemon: prepared beside the loop, checkpointed,
// stopped.
//
// Loading data takes seconds and writing a checkpoint milliseconds, so both happen on other threads
// and come back as events on the loop. Checkpoints: `current` periodically and when the model is
// first the cluster's, `best` after an evaluation that beats all before, `final` when the job ends.
// Nothing is written before the model is the cluster's. Loop thread only; outlives nothing it
// calls.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/node/patience.h"
#include "daemon/checkpoint_pace.h"
#include "daemon/config/config.h"
#include "daemon/disk/state_store.h"
#include "daemon/finish_watch.h"
#include "daemon/rest/view.h"
#include "daemon/start_plan.h"
#include "models/external/external_engine.h"
#include "models/training/trainer.h"
#include "net/event_loop.h"

namespace gossipd {

class Training {
 public:
  struct Ready {
    Schema schema;
    RoundBuffers buffers;
    bool restored = false;  // from a checkpoint of this job
    Samples own_samples = 0;
    Step step = 0;
    std::optional<Error> unreadable;  // "io-error": why not restored, though one may be there
  };
  // All on the loop thread, and from the loop: no call of Training calls back before it returns.
  struct Events {
    std::function<void(Ready)> on_ready;
    // "no-data", "bad-data" or "data-unreadable": what is missing or wrong, and the way out
    std::function<void(Error)> on_waiting_for_data;
    std::function<void(Snapshot)> on_snapshot;
    // Of an external job: whether a trainer is at work; without one, `what` the node waits for.
    std::function<void(bool present, std::string what)> on_trainer;
    std::function<void(std::string)> on_event;  // words of a log line
    std::function<void(const EvaluationView&)> on_evaluation;
    std::function<void(std::string)> on_no_progress;      // the job's patience is over
    std::function<void(std::vector<float>)> on_restored;  // empty: no checkpoint could be read
    std::function<void(const std::string& which, const CheckpointView&)> on_checkpoint;  // written
    std::function<void(std::string)> on_warning;
    std::function<void(Error)> on_failure;  // training is over until a restart
  };
  using Written = std::function<void(Result<CheckpointView>)>;

  // `socket`: where trainers of external jobs attach; null: none can. It outlives this, and is
  // closed where the job is another one.
  Training(EventLoop& loop, const DaemonConfig& config, const StateStore& store,
           TrainerSocket* socket, NodeId id, Metadata metadata, Events events);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Once per process. Ends in on_ready, on_waiting_for_data (and tries again by itself) or
  // on_failure. `founds`: of an external job without a checkpoint the model is that of the first
  // trainer, which is waited for.
  // `own_samples`: as the disk knows them; a new run of an external job counts on from there.
  void prepare(const KnownJob& job, bool founds, Samples own_samples);
  // After on_ready: the founder's initial model and a restored one are the cluster's; a joiner's is
  // not yet.
  void begin(bool model_is_the_clusters);
  void give(Update update);
  void recall();
  void set_others_samples(Samples others);
  // `goes_on`: after the end of the job.
  void set_budget(Samples samples, bool goes_on);
  // Another process makes the steps.
  [[nodiscard]] bool is_external() const {
    return job_ && job_->model.kind == ModelSpec::Kind::external;
  }
  // What members remember of an external trainer's counters, of runs that this node has lost.
  void set_remembered(Samples samples, Step step) {
    if (trainer_ && begun_ && is_external()) trainer_->set_remembered(samples, step);
  }
  // The job's nodes divide one set, or a trainer may want to: whoever is there and trains is to be
  // told to divide().
  [[nodiscard]] bool divides_data() const {
    return job_ && (job_->data.division == DataSpec::Division::shared || is_external());
  }
  void divide(std::vector<DivisionMember> members);
  void set_members(std::size_t members);
  // Reads the last good checkpoint on another thread; ends in on_restored.
  void read_back_model();
  // `which`: "current" or "final". Code "no-model" while there is none to write.
  void write_checkpoint(const std::string& which, Written done);
  void finish();  // the final model stands: evaluate it and write it
  // How far that has come.
  [[nodiscard]] FinishWatch::Final final_model() const;

  // Why it is not on disk, once a write has failed; tried again with each checkpoint, without end.
  [[nodiscard]] std::string final_model_waits_for() const;

  // This job's model, as a checkpoint: restored, or written since the start.
  [[nodiscard]] bool has_been_on_disk() const { return on_disk_; }
  // The last write of checkpoint `current` failed.
  [[nodiscard]] bool is_unwritten() const { return unwritten_.contains("current"); }
  // Writes a last checkpoint, joins the threads, then calls `done` once from the loop.
  // `model_stands`: the model is still the one that finish() had, so where `current` holds that one
  // it is not written again.
  // Data that are still being read are not waited for.
  void stop(bool model_stands, std::function<void()> done);
  [[nodiscard]] bool is_left_behind() const { return left_behind_; }

  void describe(StatusView& view, Instant now) const;
  [[nodiscard]] std::uint64_t model_floats() const {  // 0 until the model stands
    return trainer_ ? trainer_->schema().floats() : 0;
  }
  // For so long the oldest of the checkpoints under way is being written; 0: none is.
  [[nodiscard]] double checkpoint_seconds(Instant now) const;

 private:
  struct Prepared;
  struct Evaluated {
    Evaluation evaluation;
    Instant at;
  };
  struct Writing {
    bool under_way = false;
    Instant began{};
    std::vector<Written> now;   // told by the write that is under way
    std::vector<Written> next;  // asked for since it began
    bool final_model = false;   // the last one that began has the model of finish()
  };

  // What its metadata say of an evaluation; nothing: it has none.
  [[nodiscard]] static std::optional<Figures> evaluation_figures_of(const CheckpointView&);

  void run_aside(std::function<void()> task);
  void unsettle();
  void start_preparing();
  [[nodiscard]] Result<std::unique_ptr<Trainer>> make_trainer(std::string& left_out);
  [[nodiscard]] Result<std::unique_ptr<Trainer>> make_external(TrainerOptions);
  void restore(Prepared&);
  void warn_of_unused_settings(Prepared&) const;
  [[nodiscard]] std::string trainer_wanted() const;
  void on_prepared(Prepared prepared);
  void remember_old_checkpoints();
  void on_evaluated(const Evaluation& evaluation);
  void start_writing(const std::string& which, CheckpointRequest::Model model);
  void write_best();
  void on_written(const std::string& which, CheckpointView written, std::optional<Error> error);
  void on_current_took(Duration took);
  void pause_checkpoints();
  void on_checkpoint_due();
  void maybe_stop();
  [[nodiscard]] bool current_is_final() const;
  [[nodiscard]] Metadata metadata() const;

  EventLoop& loop_;
  const DaemonConfig& config_;
  const StateStore& store_;
  TrainerSocket* const socket_;
  const NodeId id_;
  const Metadata identity_;
  const Events events_;

  std::optional<Job> job_;
  JobHash job_hash_{};
  std::string start_from_;  // empty: the model begins with the seed's, or is the cluster's
  bool founds_ = false;
  Samples known_samples_ = 0;
  std::unique_ptr<Trainer> trainer_;
  std::atomic<ExternalEngine*> external_{nullptr};  // the trainer's, for what any thread may ask
  std::atomic<bool> stop_wanted_{false};            // for what runs aside
  std::thread aside_;  // one at a time: preparing, reading back, stopping
  bool busy_ = false;
  bool begun_ = false;
  bool model_is_the_clusters_ = false;
  bool finished_ = false;
  bool final_evaluated_ = false;      // since finish()
  bool no_final_evaluation_ = false;  // likewise: it failed, or nothing is held out
  bool settled_ = false;              // likewise: the final model has not moved for a while
  bool failed_ = false;
  std::string waiting_;
  std::string failure_;
  Samples others_samples_ = 0;
  std::vector<DivisionMember> division_;
  std::optional<Samples> budget_;  // when no longer the job's
  Patience patience_{0};           // the job's, once it is known

  std::optional<Evaluated> last_;
  std::optional<Figures> best_;
  std::map<std::string, Writing> writing_;
  std::map<std::string, CheckpointView> checkpoints_;
  std::set<std::string>
      unwritten_;  // checkpoints whose last write failed: tried again when the next is due
  std::map<std::string, std::string> write_failures_;  // of checkpoints, until one succeeds
  std::uint64_t checkpoints_failed_ = 0;
  CheckpointPace pace_;       // of `current`
  Step step_of_current_ = 0;  // of the last `current` asked for
  bool on_disk_ = false;      // has_been_on_disk()

  const std::string why_on_cpu_;  // though a GPU may be used; empty: one is, or none may be

  Timer checkpoint_timer_;
  Timer data_timer_;
  Timer settled_timer_;            // until settled_
  std::function<void()> stopped_;  // set once stop() was called
  bool model_stands_ = false;      // at stop()
  bool stopping_trainer_ = false;
  bool left_behind_ = false;  // the stop has not waited for what runs aside
};

}  // namespace gossipd
