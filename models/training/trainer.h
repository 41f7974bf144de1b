// models/training/trainer.h - trains one job's model on this node, and meets the exchange at step
// boundaries.
//
// Follows core/exchange/trainer_port.h: give() hands over an update, which is applied once at the
// next step boundary, and the same buffer comes back in a snapshot. The training thread never waits
// for the network while it may step. It does wait, and answers give() with a snapshot at once, when
// the update says `training = false`, when the budget is spent, or when its numbers are no longer
// finite (then only a `replace` update lets it go on).
// An update may also set the batch and scale the learning rate, from the next step on: samples,
// place in the data and budget count what was really trained on, and step_seconds is of the batch
// in force. Where the job's nodes divide one set (division.h), set_division() says who they are,
// and this node trains on its buckets; until then on all. A node that joins begins at the cluster's
// place in the data. A member that is far behind, for example after a network partition, moves
// there when another node joins.
// Given the job, the shard, the walker and no updates, a run is bit-identical to any other on the
// same machine.
//
// Threads: create/restore/start/stop from one owner; what says "any thread" from any. Callbacks
// come on the trainer's threads and must not call start() or stop(). Torch stays behind this
// header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/exchange/trainer_port.h"
#include "core/model/schema.h"
#include "models/checkpoint/checkpoint.h"
#include "models/data/division.h"
#include "models/job/job.h"
#include "models/networks/figures.h"

namespace gossipd {

class Engine;

struct TrainerOptions {
  std::string data_dir;  // where the job's files lie
  // as in models/devices/device_names.h: one device, or several that share each batch
  std::string device = "auto";
  int threads = 1;  // of tensor arithmetic on the CPU
  // every step takes at least so long: leaves the device to others
  double min_step_ms = 0;
  std::uint32_t shard_index = 0;  // this node trains on every shard_count-th sample of the job's
  std::uint32_t shard_count = 1;  // permutation, starting with the shard_index-th
  // not 0: in an order of its own, apart from other nodes with the same shard
  std::uint64_t walker = 0;
  // of a job whose nodes divide one set (then 0 of 1, no walker): which of them this is
  NodeId node{};
  int nice = 5;  // of the training thread, so that the protocol keeps its pace
  // of a TorchScript job: a file with the content that the job names
  std::string model_file;
  // safetensors or TorchScript: the model begins with these weights; empty: as the job says
  std::string start_from;
  // make the next samples ready in the background; 0: the training thread reads for itself
  int loader_threads = 1;
  // of decoded images kept in memory, in each of training and held-out set
  std::uint64_t image_cache_bytes = 1ull << 30;
  bool evaluate = true;  // load the held-out set and evaluate as the job says
};

struct Evaluation : Figures {
  Step step = 0;             // of the model that was evaluated
  Samples at_samples = 0;    // the cluster's, when the model was taken
  double seconds = 0;        // that the evaluation took
  bool asked_for = false;    // by request_evaluation(): of the model as it was then, or newer
  std::uint64_t number = 0;  // from 1
};

enum class TrainerState : std::uint8_t {
  idle,     // not started, or stopped
  holding,  // started, waits for the cluster's model or was told not to train
  training,
  waiting_for_trainer,  // no process is attached that makes steps, or it says nothing
  finished,             // the job's budget is spent
  not_finite,           // waits for a `replace` update
  failed,               // the device or a library refused; on_failure said why
};
[[nodiscard]] std::string_view to_string(TrainerState);

struct TrainerStatus {
  TrainerState state = TrainerState::idle;
  Step step = 0;
  Samples samples = 0;  // own
  // samples drawn from the shard; of a divided set also those that were other nodes'
  Samples data_position = 0;
  double loss = 0;                                        // smoothed
  double learning_rate = 0;                               // of the next step
  double step_seconds = 0;                                // smoothed
  std::optional<DivisionStatus> division = std::nullopt;  // if the job's nodes divide one set
};

// Of the model that is in the file.
struct WrittenCheckpoint {
  std::uint64_t bytes = 0;
  Step step = 0;
  Samples samples = 0;  // the node's own
  // Of writing alone, not of what the request waited for; nor while the machine sleeps.
  Duration took{};
};

struct CheckpointRequest {
  enum class Model { current, last_evaluated };
  std::filesystem::path path;
  Metadata metadata;  // added to what the trainer knows itself
  // last_evaluated: exactly what an Evaluation measured (for "best"); "superseded" if a newer one
  // is there
  Model model = Model::current;
  // on a trainer thread, or the caller's when stopped
  std::function<void(Result<WrittenCheckpoint>)> done;
  std::uint64_t evaluation = 0;  // last_evaluated: the number of that Evaluation
  WriteRefusal refuses = {};
};

class Trainer {
 public:
  struct Callbacks {
    std::function<void(Snapshot)> on_snapshot;      // training thread
    std::function<void(Evaluation)> on_evaluation;  // evaluation thread
    // training thread; the trainer is in `failed` and steps no more
    std::function<void(Error)> on_failure;
    // evaluation thread; training goes on, and so does the next evaluation
    std::function<void(Error)> on_evaluation_failure;
    // evaluation thread; of one that was asked for: it failed, or nothing is held out
    std::function<void()> on_no_evaluation{};
    // Of steps that another process makes: whether one is at work, told at the start and when it
    // changes. Training thread.
    std::function<void(bool present)> on_outside{};
    std::function<void(std::string)> on_event{};  // words of a log line; training thread
  };

  // Loads the data and builds the model from job.seed. Codes "no-data", "bad-data" (say what to put
  // where), "no-device" (names the device), "bad-config", "bad-weights". `left_out` becomes
  // DataSets::left_out.
  static Result<std::unique_ptr<Trainer>> create(const Job&, const TrainerOptions&,
                                                 std::string* left_out = nullptr);
  // The same loop over any engine; create() is this with LibTorch's.
  static std::unique_ptr<Trainer> with_engine(const Job&, const TrainerOptions&,
                                              std::unique_ptr<Engine>);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] const Schema& schema() const;
  [[nodiscard]] const Job& job() const;
  [[nodiscard]] std::string device() const;     // "cpu", "cuda:0", "cuda:0,cuda:1"
  [[nodiscard]] Samples shard_samples() const;  // training samples of this node's shard

  // Before start(). The model as it is now: from the seed, or restored.
  void copy_model(std::span<float> out) const;
  // Before start(). Model, optimiser, counters, place in the data. Code "foreign-checkpoint".
  [[nodiscard]] std::optional<Error> restore(const Checkpoint&);

  // `hold`: make no step before the first give(): a joiner waits for the cluster's model.
  void start(Callbacks, bool hold = false);
  // Joins the threads; requested checkpoints are written first. Safe to repeat; start() may follow.
  void stop();

  // Any thread. `values` has P floats; at most one update may be outstanding.
  void give(Update);
  // Any thread. The snapshot in answer to the last update is wanted at the next step boundary;
  // nothing if it has been given back.
  void recall();
  // Any thread. What the rest of the cluster has trained on, for the schedule and the budget.
  void set_others_samples(Samples);
  // Any thread. Who divides the job's set, from the next step boundary on; without this node in it,
  // it is not to train. Nothing where nodes have data of their own.
  void set_division(std::vector<DivisionMember> members);
  // Any thread. For who makes the steps elsewhere: how many members are there, and whether the
  // model is the job's final one.
  void set_members(std::uint32_t members);
  void set_settled(bool settled);
  // Any thread. The job ends there; the schedule is stretched to it.
  void set_budget(Samples);
  // Any thread. After a restart the own counter is the larger of the disk's and the peers'.
  void raise_own_samples(Samples at_least);
  // Any thread. The own counters as members remember them, from a process before this one, where
  // another process makes the steps.
  void set_remembered(Samples samples, Step step);
  // Any thread. Evaluates the model of the next step boundary; requests that pile up become one.
  void request_evaluation();
  // Any thread. Taken at the next step boundary, written on the writing thread; when stopped, at
  // once.
  void write_checkpoint(CheckpointRequest);
  // Any thread.
  [[nodiscard]] TrainerStatus status() const;

 private:
  class Implementation;
  explicit Trainer(std::unique_ptr<Implementation>);
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace gossipd
