// models/autocast.h - bf16 arithmetic for a scope, on the calling thread. Only models/*.cpp that compile against LibTorch include this.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "models/training_spec.h"

namespace gossipd {

class AutocastScope {
 public:
  AutocastScope(TrainingSpec::Precision precision, torch::Device device) : on_(precision == TrainingSpec::Precision::bf16), device_(device.type()) {
    if (on_) set(true);
  }
  ~AutocastScope() {
    if (!on_) return;
    at::autocast::clear_cache();  // of parameters in bf16: the next step changes them
    set(false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(bool on) const {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_enabled(device_, on);
#else
    if (device_ == at::kCUDA) {
      at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
      at::autocast::set_enabled(on);
    } else {
      at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
      at::autocast::set_cpu_enabled(on);
    }
#endif
  }

  const bool on_;
  const at::DeviceType device_;
};

}  // namespace gossipd
