// models/descent/device_descent.h - the step of optimizer.h on any device that LibTorch knows, by
// its library.
//
// Where LibTorch has a fused kernel, one pass reads and writes what a step needs: 28 bytes a
// parameter with AdamW, where one kernel for each operation moves about 100. The formulas are those
// of optimizer.h, rounded as the device rounds. Only begun when the call returns. Only sources of
// models/ that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "models/descent/optimizer.h"

namespace gossipd {

// Contiguous floats of one device, all of one length; `variance` is undefined for SGD.
struct DeviceDescent {
  torch::Tensor x, momentum, variance, gradient;
};

// `step` counts from 1; the gradient is zero afterwards.
void optimizer_step_on_device(const OptimizerSpec&, double learning_rate, Step step,
                              const DeviceDescent&);

}  // namespace gossipd
