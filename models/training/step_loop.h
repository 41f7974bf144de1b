// models/training/step_loop.h - what a node's training is between two steps, and what comes next.
//
// The problem: whatever trains for a node keeps the same account: what has been trained on, what
// the last update asks for, when the exchange's buffer is due back, and why there may be no step.
// The trainer keeps it beside a tensor library, the lab in virtual time, the simulator over a few
// made-up floats. Three accounts of one contract (core/exchange/trainer_port.h) drift apart.
//
// The answer: a StepLoop keeps the account and decides; its driver owns the model, the data, the
// clock and the budget. Every moment between two steps is a boundary. There the driver
//
//     applies an update to its model, then loop.take(update);   // where one has come
//     loop.at_boundary(cluster);                                 // decides the state
//     if (loop.next() == Next::begin_snapshot) fill(loop.begin_snapshot(rates));
//     when the buffer is filled, now or at a later boundary: give(loop.hand_over());
//     if (loop.next() == Next::step) { make a step; loop.on_step(made); }
//
// Pure: no clock, no thread, no tensor. One owner, one thread at a time.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "core/exchange/trainer_port.h"

namespace gossipd {

class StepLoop {
 public:
  enum class State : std::uint8_t {
    holding,  // waits for a first update, or the last one said not to train
    training,
    finished,    // the budget is spent
    not_finite,  // of the model; only an update that replaces it lets training go on
  };
  enum class Next : std::uint8_t { begin_snapshot, step, wait };

  // What outlives a process.
  struct Counters {
    Step step = 0;              // optimiser steps made
    Samples samples = 0;        // trained on, as this node counts them
    Samples data_position = 0;  // place in the data; steps may skip samples that are other nodes'
  };
  struct Cluster {
    Samples others = 0;                                    // trained on by all other nodes
    Samples budget = std::numeric_limits<Samples>::max();  // of all; there is no step beyond it
  };
  struct MadeStep {
    double loss = 0;            // before the step, mean over its batch
    Samples next_position = 0;  // in the data, after its samples
    double seconds = 0;
  };
  // Steps that another process has made since the last boundary.
  struct OutsideSteps {
    Step step = 0;  // the node's, with them
    Samples samples = 0;
    double loss = 0;     // of the newest; not finite: not known
    double seconds = 0;  // of the newest; 0: not known
  };
  struct Rates {  // the schedule's or an outside process's, without an update's factor
    double now = 0;
    double peak = 0;
  };

  // `steps_outside`: another process makes the steps. Its batch and its rate are its own, so no
  // update changes them here; the batch is found from the samples that its steps had.
  explicit StepLoop(std::uint32_t job_batch, bool steps_outside = false)
      : job_batch_(job_batch), steps_outside_(steps_outside), batch_(job_batch) {}

  // From a checkpoint; without `loss`, the smoothed one begins anew. A buffer on loan stays; a
  // snapshot begun in it is begun again.
  void restore(const Counters&, std::optional<double> loss = std::nullopt);
  // `hold`: no step before the first update: a joiner waits for the cluster's model.
  void start(bool hold) { holding_ = hold; }

  // ---- at a boundary ----
  // The driver has applied it, unless it adds to a model that is not finite. Its buffer is on loan
  // until hand_over(); there must be none yet.
  void take(Update);
  // The snapshot is wanted at the next boundary. Nothing, if no buffer is on loan.
  void request_snapshot();
  // A restart counts no less than the peers know of.
  void raise_samples(Samples at_least) { samples_ = std::max(samples_, at_least); }
  void skip_to(Samples position) { data_position_ = std::max(data_position_, position); }
  // Decides the state, which holds until the next boundary.
  State at_boundary(const Cluster&);
  [[nodiscard]] Next next() const;
  // Fills in all but the model and returns the buffer that it belongs in. Steps may go on while the
  // driver fills it.
  std::span<float> begin_snapshot(const Rates&);
  // The buffer is filled: its loan ends.
  Snapshot hand_over();

  // ---- at any time ----
  void on_step(const MadeStep&);
  // Neither counter ever becomes less. Who makes the steps also fills the buffer, later than it was
  // asked to, so these steps are in a snapshot that is being filled.
  void on_outside_steps(const OutsideSteps&);
  // The driver has found a parameter that is NaN or infinite.
  void on_not_finite() { not_finite_ = true; }

  [[nodiscard]] State state() const { return not_finite_ ? State::not_finite : state_; }
  [[nodiscard]] bool is_finite() const { return !not_finite_; }
  [[nodiscard]] bool has_loan() const { return loan_.has_value(); }
  [[nodiscard]] bool is_filling() const { return loan_ && loan_->snapshot; }
  // The driver should wait until the buffer is filled: it was asked for, or no step is to come.
  [[nodiscard]] bool is_urgent() const;
  [[nodiscard]] std::span<const float> buffer() const { return loan_->buffer; }

  [[nodiscard]] Counters counters() const { return {step_, samples_, data_position_}; }
  [[nodiscard]] Step step() const { return step_; }
  [[nodiscard]] Samples samples() const { return samples_; }
  [[nodiscard]] Samples data_position() const { return data_position_; }
  [[nodiscard]] std::uint32_t batch() const { return batch_; }
  [[nodiscard]] double rate_scale() const { return rate_scale_; }
  [[nodiscard]] double loss() const { return loss_; }
  [[nodiscard]] double step_seconds() const { return step_seconds_; }

 private:
  void note_loss(double loss);
  void note_outside_batch(const OutsideSteps& made);

  struct Loan {
    std::vector<float> buffer;
    Step due = 0;            // the snapshot is wanted once this step has been made
    bool requested = false;  // … and once this is true, whatever the step
    std::optional<Snapshot> snapshot = std::nullopt;  // begun: all of it but the model
  };

  std::uint32_t job_batch_;
  bool steps_outside_;
  Step step_ = 0;
  Samples samples_ = 0;           // at least batch_ more after each step
  Samples data_position_ = 0;     // never goes back, but by restore()
  double loss_ = 0;               // smoothed; 0 before the first step
  Step losses_ = 0;               // in loss_; 0: it is of another model, the next one replaces it
  double loss_worst_ = 0;         // of a step since the last snapshot was begun; 0: there was none
  double step_seconds_ = 0;       // smoothed over steps of batch_ samples; 0: there was none
  std::uint32_t batch_;           // samples of the next step; never 0
  double outside_batch_ = 0;      // smoothed samples of an outside step; 0: none was heard of
  double rate_scale_ = 1;         // by the last update; 1 where steps are made outside
  bool holding_ = true;           // until the first update
  bool told_to_train_ = true;     // by the last update
  bool not_finite_ = false;       // until an update replaces the model
  State state_ = State::holding;  // as decided at the last boundary; never not_finite
  std::optional<Loan> loan_;      // between take() and hand_over()
};

}  // namespace gossipd
