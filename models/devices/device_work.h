// models/devices/device_work.h - what a device does while the host goes on, for any kind of device
// that LibTorch knows.
//
// On the CPU work is done when it is called, so nothing here waits there. The current stream is the
// calling thread's. One thread at a time for each object. Only sources of models/ that compile
// against LibTorch include this.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <optional>

#include "models/devices/patience.h"

namespace gossipd {

[[nodiscard]] inline c10::Stream current_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}
[[nodiscard]] inline c10::Stream side_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// A point in the work of a stream.
class Mark {
 public:
  explicit Mark(torch::Device device) : device_(device) {
    if (!device.is_cpu()) event_.emplace(device.type());
  }
  // After all that `stream` has been given so far.
  void set(const c10::Stream& stream) {
    if (event_) event_->record(stream);
  }
  void set() { set(current_stream(device_)); }
  // The stream goes on behind the mark; the host does not wait.
  void hold_back(const c10::Stream& stream) const {
    if (event_) event_->block(stream);
  }
  // The host waits. Throws DeviceSilent.
  void wait() const {
    if (event_) await_device([this] { return event_->query(); }, device_.str());
  }

 private:
  torch::Device device_;
  std::optional<c10::Event> event_;
};

// A number that a device computes, read by the host when it wants it. On the CPU it is there.
class LateNumber {
 public:
  explicit LateNumber(torch::Device device) : there_(device) {
    if (!device.is_cpu())
      host_ = torch::zeros({}, torch::TensorOptions(torch::kFloat64).pinned_memory(true));
  }
  void put(double value) {
    value_ = value;
    pending_ = false;
  }
  void put(const torch::Tensor& scalar) {
    if (!host_.defined()) return put(scalar.item<double>());
    host_.copy_(scalar, /*non_blocking=*/true);
    there_.set();
    pending_ = true;
  }
  [[nodiscard]] double take() {
    if (std::exchange(pending_, false)) {
      there_.wait();
      value_ = *host_.data_ptr<double>();
    }
    return value_;
  }

 private:
  Mark there_;
  torch::Tensor host_;
  double value_ = 0;
  bool pending_ = false;
};

}  // namespace gossipd
