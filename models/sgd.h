// models/sgd.h - stochastic gradient descent with momentum over flat vectors, in one pass.
//
// The formula of torch::optim::SGD (dampening 0):
//   g += weight_decay·x ;  v = momentum·v + g ;  x -= learning_rate·(nesterov ? g + momentum·v : v)
// and the gradient is left zero for the next step.
#pragma once

#include "models/job.h"

namespace gossipd {

void sgd_step(const OptimizerSpec&, double learning_rate, std::span<float> x, std::span<float> v, std::span<float> g);

}  // namespace gossipd
