// models/devices/autocast.h - bf16 or fp16 arithmetic for a scope, on the calling thread. Only
// sources of models/ that compile against LibTorch include this.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "models/job/training_spec.h"

namespace gossipd {

class AutocastScope {
  using Precision = TrainingSpec::Precision;

 public:
  // fp16 holds for CUDA alone: no CPU computes in it.
  AutocastScope(TrainingSpec::Precision precision, torch::Device device)
      : on_(precision == Precision::bf16 || (precision == Precision::fp16 && device.is_cuda())),
        type_(precision == Precision::bf16 ? at::kBFloat16 : at::kHalf),
        device_(device.type()) {
    if (on_) set(true);
  }
  ~AutocastScope() {
    if (!on_) return;
    at::autocast::clear_cache();  // of parameters as they were cast: the next step changes them
    set(false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(bool on) const {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    at::autocast::set_autocast_dtype(device_, type_);
    at::autocast::set_autocast_enabled(device_, on);
#else
    if (device_ == at::kCUDA) {
      at::autocast::set_autocast_gpu_dtype(type_);
      at::autocast::set_enabled(on);
    } else {
      at::autocast::set_autocast_cpu_dtype(type_);
      at::autocast::set_cpu_enabled(on);
    }
#endif
  }

  const bool on_;
  const at::ScalarType type_;
  const at::DeviceType device_;
};

}  // namespace gossipd
