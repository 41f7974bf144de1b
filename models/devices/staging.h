// models/devices/staging.h - large vectors between a device and pageable host memory, through two
// small pieces of pinned memory.
//
// A copy between a device and pageable memory waits for all that the device was given, and runs at
// a fraction of the bus. Here one piece crosses the bus, on a stream of its own, while the host
// moves the other. Both pieces are kept for the next time. The host waits until all is there; the
// device goes on with other streams. On the CPU the same pieces are ordinary copies. One thread at
// a time. Only sources of models/ that compile against LibTorch include this.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "models/devices/cuda_runtime.h"
#include "models/devices/device_work.h"

namespace gossipd {

// Floats in memory that CUDA has locked, if it can and `device` is one of its.
[[nodiscard]] torch::Tensor pinned_tensor(c10::IntArrayRef shape, at::ScalarType,
                                          torch::Device device);

class Staging {
 public:
  static constexpr std::int64_t piece_floats = std::int64_t{8} << 20;  // 32 MiB

  explicit Staging(torch::Device, std::int64_t piece_floats = Staging::piece_floats);

  // `values`: contiguous floats of the device, as many as `host`, as the calling thread's current
  // stream leaves them.
  void to_host(const torch::Tensor& values, std::span<float> host);
  // What the current stream is given from now on comes after it.
  void to_device(std::span<const float> host, torch::Tensor values);

 private:
  struct Piece {
    explicit Piece(torch::Device device) : crossed(device) {}
    torch::Tensor memory;  // pinned; made with the first copy
    Mark crossed;          // the bus, on side_
  };
  Piece& piece(std::int64_t number, std::int64_t floats);

  const torch::Device device_;
  const std::int64_t piece_floats_;
  const c10::Stream side_;
  std::array<Piece, 2> pieces_;
  Mark given_;  // what the current stream was given before
  Mark done_;
};

}  // namespace gossipd
