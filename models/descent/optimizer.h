// models/descent/optimizer.h - one step of the job's optimiser over flat vectors, in one pass.
//
// SGD, the formula of torch::optim::SGD (dampening 0):
//   g += weight_decay·x ;  m = momentum·m + g ;  x -= learning_rate·(nesterov ? g + momentum·m : m)
// AdamW, that of torch::optim::AdamW; t counts this node's own steps since the state was zero:
//   x -= learning_rate·weight_decay·x ;  m = β1·m + (1−β1)·g ;  v = β2·v + (1−β2)·g² ;
//   x -= learning_rate·(m/(1−β1^t)) / (√(v/(1−β2^t)) + ε)
// Either leaves the gradient zero for the next step. Any thread, one at a time for each state.
#pragma once

#include <optional>

#include "models/descent/loss_scale.h"
#include "models/job/job.h"

namespace gossipd {

// What the optimiser knows beside the model. Both vectors empty: zero.
struct OptimizerState {
  // P floats, in the schema's order: SGD's velocity, AdamW's mean of the gradients; empty for SGD
  // without momentum
  std::vector<float> momentum;
  std::vector<float> variance;  // P floats, AdamW's mean of the squared gradients; empty for SGD
  Step steps = 0;               // taken since the vectors were zero
  std::optional<LossScale> loss_scale;  // fp16's; nothing: where it begins
  bool operator==(const OptimizerState&) const = default;
};

// Vectors of P floats that the state has: 2 for AdamW, 1 for SGD, 0 for SGD without momentum.
[[nodiscard]] std::size_t optimizer_vectors(const OptimizerSpec&);
// Whether a state from outside is of this optimiser and of a model of `floats` floats, or zero. SGD
// without momentum may have a velocity, which it ignores: until November 2026 it kept one.
[[nodiscard]] bool fits(const OptimizerState&, const OptimizerSpec&, std::size_t floats);

// 1 − β^t of both means, by which they are divided: they began at zero. `step` is t, from 1 on.
struct BiasCorrection {
  double momentum = 1;
  double variance = 1;
};
[[nodiscard]] BiasCorrection bias_correction(const OptimizerSpec&, Step step);

// What a step reads and writes, all of one length, or empty as in OptimizerState.
struct Descent {
  std::span<float> x, momentum, variance, gradient;
};
void optimizer_step(const OptimizerSpec&, double learning_rate, Step step, const Descent&);
// The same with a state, which gets its vectors at the first step and counts the steps.
void optimizer_step(const OptimizerSpec&, double learning_rate, std::span<float> x, OptimizerState&,
                    std::span<float> gradient);

}  // namespace gossipd
