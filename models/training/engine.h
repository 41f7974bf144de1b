// models/training/engine.h - what the trainer needs of a tensor library: one step, and the flat
// model.
//
// The training loop (trainer.cpp) is plain C++ on top of this, so that its threads can be tested
// with a toy engine and ThreadSanitizer. One thread at a time, except evaluate(), which has its own
// copy of the network and is called from the evaluation thread. Failures of the library are
// std::exception whose text is one sentence for a person.
#pragma once

#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/model/schema.h"
#include "models/data/division.h"
#include "models/descent/optimizer.h"
#include "models/devices/device_failure.h"
#include "models/networks/figures.h"

namespace gossipd {

// An evaluation of a process of the user's.
struct ReportedFigures : Figures {
  Step step = 0;
  double seconds = 0;
};

// Steps that another process makes. Where an engine has this, the training thread makes none by
// step(): it goes from boundary to boundary by meet().
class OutsideSteps {
 public:
  // What the process is to know.
  struct Order {
    bool training = false;
    bool finished = false;
    bool settled = false;  // finished, and the model is the final one
    Samples cluster_samples = 0;
    Samples budget = 0;
    double rate_factor = 1;  // of the schedule, without the process's own
    // of this node, as they stand: a new run goes on from there
    Step step = 0;
    Samples samples = 0;
    // What members remember of this node's counters, from a process before this one.
    Step remembered_step = 0;
    Samples remembered_samples = 0;
    std::vector<NodeId> trainers;  // of all nodes that train now, sorted
    std::uint32_t members = 1;     // that are there
  };
  using Reported = ReportedFigures;
  // What it has said since the last time.
  struct News {
    // of this node; nothing: no word of steps came
    std::optional<Step> step = std::nullopt;
    Samples samples = 0;
    double loss = std::numeric_limits<double>::quiet_NaN();  // not finite: not known
    // nothing: no word of it came; 0: not known
    std::optional<double> learning_rate = std::nullopt;
    double step_seconds = 0;  // 0: not known
    bool finite = true;
    bool present = false;  // a process is attached and at work
    std::optional<Reported> report = std::nullopt;
    std::vector<std::string> events{};  // key=value words of log lines
  };

  virtual ~OutsideSteps() = default;
  // Tells `order` to who waits for it; then waits for news, or until wake().
  virtual News meet(const Order& order) = 0;
  // Any thread.
  virtual void wake() = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Null: the engine makes the steps itself.
  [[nodiscard]] virtual OutsideSteps* outside() { return nullptr; }
  [[nodiscard]] virtual const Schema& schema() const = 0;
  [[nodiscard]] virtual std::string device() const = 0;
  [[nodiscard]] virtual Samples shard_samples() const = 0;
  // On each thread before it computes.
  virtual void prepare_thread(int nice) = 0;

  // Trains on `batch` samples (0: the job's) from `position` of the shard's order on; returns their
  // mean loss before the step. Where the loss is known later than the host could go on, from the
  // second call after the model was replaced on it is that of the step before.
  virtual double step(Samples position, double learning_rate, std::uint32_t batch = 0) = 0;
  // After step(position, …, batch): the position after its samples.
  [[nodiscard]] virtual Samples next_position(Samples position, std::uint32_t batch) const {
    return position + batch;
  }
  // Of a set that nodes divide among themselves: the next steps' samples are of these buckets, not
  // none; null: of all.
  virtual void restrict_to(BucketSet) {}

  // All of P floats, in host memory, in the schema's order.
  virtual void copy_model(std::span<float> out) = 0;
  // add_to_model() and replace_model() may be called now; if not, later, without being asked to.
  [[nodiscard]] virtual bool takes_updates() const { return true; }
  // May only be begun when it returns: `values` stay what they are until the next begin_copy() or
  // settle(). Every copy of the model that is asked for from now on has it in.
  virtual void add_to_model(std::span<const float> values) = 0;
  virtual void replace_model(std::span<const float> values) = 0;
  // copy_model() that steps may go on beside: it is whole when copied() says so, and of the model
  // as it was at begin_copy(). One at a time.
  virtual void begin_copy(std::span<float> out) { copy_model(out); }
  virtual bool copied() { return true; }
  // Whether begin_copy() would not wait, for an update that is not in the model yet.
  [[nodiscard]] virtual bool ready_to_copy() const { return true; }
  // Of a copy that is whole: whether all its floats are finite, if the engine knows. Nothing: the
  // caller has to look.
  virtual std::optional<bool> copy_is_finite() { return std::nullopt; }
  // Waits until everything that was begun is done.
  virtual void settle() {}
  // Copied to host memory; zero for what is not trained.
  virtual OptimizerState optimizer_state() = 0;
  // `state` fits() the job's optimiser; OptimizerState{} starts it at zero.
  virtual void restore_optimizer(const OptimizerState& state) = 0;

  // Nothing when there is no held-out set, or when `cancel` turned true on the way. A failure
  // leaves the engine as it was.
  virtual std::optional<Figures> evaluate(std::span<const float> model,
                                          const std::atomic<bool>& cancel) = 0;
};

}  // namespace gossipd
