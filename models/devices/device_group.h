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

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace gossipd {

inline constexpr std::chrono::milliseconds rank_silence_max = std::chrono::minutes(5);

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  // Contiguous floats of the rank's device, the same number everywhere.
  virtual void sum(torch::Tensor& values) = 0;
  virtual void copy_from_first(torch::Tensor& values) = 0;
  // From any thread, once a rank hangs: ends what the group has begun, as well as it can, so that
  // nothing waits for it when the process ends. No other call follows.
  virtual void give_up() noexcept {}
};

// One sum and one copy of each size that training will ask for, and the host waits for both: NCCL
// makes its connections, and CUDA loads its kernels, with the first collective, which inside a step
// would wait for what other ranks have queued. Called by all ranks at once, after join(). Throws
// when a rank does not answer or a sum is wrong.
void try_group(DeviceGroup&, std::size_t ranks, torch::Tensor gradient, torch::Tensor statistics);

// Where ranks find each other. One for each group; outlives it.
class MeetingPlace {
 public:
  explicit MeetingPlace(std::size_t ranks);
  ~MeetingPlace();
  [[nodiscard]] std::size_t ranks() const { return ranks_; }
  // Blocks until all ranks are here; called once by each, all at the same time. Here and later a
  // rank that is silent for so long is a failure of the others.
  [[nodiscard]] std::unique_ptr<DeviceGroup> join(
      std::size_t rank, torch::Device, std::chrono::milliseconds silence_max = rank_silence_max);

 private:
  struct Store;
  const std::size_t ranks_;
  std::unique_ptr<Store> store_;
};

// Why devices of this type cannot be grouped by this build, and the way out; nothing when they can.
[[nodiscard]] std::optional<std::string> why_no_group(torch::DeviceType);

}  // namespace gossipd
