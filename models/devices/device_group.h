// models/devices/device_group.h - sums over the devices of one node, by LibTorch's c10d inside this
// process.
//
// NCCL where all devices are CUDA devices and this build has it, else Gloo over the loopback
// interface. Every rank has its own DeviceGroup and calls the same methods in the same order, each
// on a thread of its own; they return when the device's stream has the result in order (CPU: when
// it is there), bit-identical on all ranks. Failures are std::exception. Only sources of models/
// that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>

namespace gossipd {

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  // Contiguous floats of the rank's device, the same number everywhere.
  virtual void sum(torch::Tensor& values) = 0;
  virtual void copy_from_first(torch::Tensor& values) = 0;
};

// Where ranks find each other. One for each group; outlives it.
class MeetingPlace {
 public:
  explicit MeetingPlace(std::size_t ranks);
  ~MeetingPlace();
  [[nodiscard]] std::size_t ranks() const { return ranks_; }
  // Blocks until all ranks are here; called once by each, all at the same time.
  [[nodiscard]] std::unique_ptr<DeviceGroup> join(std::size_t rank, torch::Device);

 private:
  struct Store;
  const std::size_t ranks_;
  std::unique_ptr<Store> store_;
};

// Why devices of this type cannot be grouped by this build, and the way out; nothing when they can.
[[nodiscard]] std::optional<std::string> why_no_group(torch::DeviceType);

}  // namespace gossipd
