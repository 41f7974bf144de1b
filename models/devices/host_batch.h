// models/devices/host_batch.h - a batch in host memory, as tensors and as the plain memory that
// data sets write to. Only sources of models/ that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "models/data/data_set.h"
#include "models/devices/staging.h"

namespace gossipd {

class HostBatch {
 public:
  // A batch for a CUDA device is pinned: it takes it while the host goes on.
  HostBatch(const SampleShape& input, const SampleShape& target, std::int64_t samples,
            torch::Device device = torch::kCPU)
      : inputs(empty(input, samples, device)), targets(empty(target, samples, device)) {}

  [[nodiscard]] std::int64_t samples() const { return inputs.size(0); }
  [[nodiscard]] Batch view() { return {values_of(inputs), values_of(targets)}; }

  torch::Tensor inputs;  // [samples, the sample's shape …]
  torch::Tensor targets;

 private:
  static torch::Tensor empty(const SampleShape& sample, std::int64_t samples,
                             torch::Device device) {
    std::vector<std::int64_t> shape = sample.shape;
    shape.insert(shape.begin(), samples);
    const auto element =
        sample.element == SampleShape::Element::float32 ? torch::kFloat32 : torch::kInt64;
    return pinned_tensor(shape, element, device);
  }
  static Batch::Values values_of(torch::Tensor& tensor) {
    const auto size = static_cast<std::size_t>(tensor.numel());
    if (tensor.scalar_type() == torch::kFloat32) return std::span(tensor.data_ptr<float>(), size);
    return std::span(tensor.data_ptr<std::int64_t>(), size);
  }
};

}  // namespace gossipd
