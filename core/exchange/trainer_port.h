// core/exchange/trainer_port.h - what passes between the core and the trainer.
//
// One buffer of P floats goes back and forth, so at most one update is outstanding: the core fills
// it with an additive update and gives it away (Update); the trainer adds it to its parameters at
// the next step boundary, later fills the same buffer with its parameters and gives it back
// (Snapshot). The next snapshot is therefore always taken after the last update was applied and
// nothing is mixed twice. The trainer never waits for the buffer while it has steps to make. The
// core may ask for it early (RequestSnapshotEffect); it then comes at the end of the current step.
#pragma once

#include "core/base/large_memory.h"
#include "core/base/types.h"

namespace gossipd {

// Trainer → core, at a step boundary.
struct Snapshot {
  std::vector<float> model;       // P floats: parameters after `step` steps
  Step step = 0;                  // optimiser steps made since this node's model began
  Samples samples = 0;            // samples this node has trained on since its counter began
  double loss = 0;                // smoothed training loss; 0 before the first step
  double loss_worst = 0;          // largest of a step since the last snapshot; 0: not known
  double learning_rate = 0;       // of the next step, with the update's rate_scale
  double learning_rate_peak = 0;  // the schedule's largest, with the same factor
  double step_seconds = 0;        // smoothed wall time of one step
  std::uint32_t batch = 0;        // samples of one step, now; step_seconds is of this batch
  std::uint32_t job_batch = 0;    // samples of one step as the job asks; 0: the same as `batch`
  bool batch_is_fixed = false;    // who makes the steps chooses it: an update's does not count
  bool finite = true;             // false: a parameter or the loss is NaN or infinite
};

// The two buffers of a node's rounds, P zeros each. Who prepares the model makes them, on a thread
// of its own, since the first touch of so much memory takes long: of 100 million parameters some
// tenths of a second.
struct RoundBuffers {
  std::vector<float> base;
  std::vector<float> update;
  std::vector<float> initial{};    // the job's initial model, P floats; empty: not known
  std::uint64_t initial_hash = 0;  // XXH3-64 of it; 0: not computed
};
[[nodiscard]] inline RoundBuffers make_round_buffers(std::uint64_t floats) {
  return {large_zeros(floats), large_zeros(floats), {}, 0};
}

// Core → trainer.
struct Update {
  std::vector<float> values;  // P floats, to be added to the parameters
  // instead: these are the parameters; the optimiser's state starts at zero
  bool replace = false;
  Step snapshot_step = 0;  // the next snapshot is wanted at this own step, or at once behind it
  // false (budget spent, paused, left): the next snapshot is wanted at once, without a step
  bool training = true;
  std::uint32_t batch = 0;  // samples per step from the next step on; 0: the job's
  double rate_scale = 1;    // factor on the learning rate from the next step on
};

}  // namespace gossipd
