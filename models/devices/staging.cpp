#include "models/devices/staging.h"

#include <c10/core/StreamGuard.h>

#include <cstring>

namespace gossipd {

namespace {

constexpr bool non_blocking = true;

c10::Stream stream_beside(torch::Device device) {
  return device.is_cpu() ? current_stream(device) : side_stream(device);
}

std::size_t bytes_of(std::int64_t floats) {
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

torch::Tensor pinned_tensor(c10::IntArrayRef shape, at::ScalarType type, torch::Device device) {
  if (!device.is_cuda()) return torch::empty(shape, type);
  const auto values = static_cast<std::size_t>(c10::multiply_integers(shape));
  auto memory = std::make_shared<PageLocked>(values * c10::elementSize(type));
  return torch::from_blob(
      memory->data(), shape, [memory](void*) {}, type);
}

Staging::Staging(torch::Device device, std::int64_t piece_floats)
    : device_(device),
      piece_floats_(piece_floats),
      side_(stream_beside(device)),
      pieces_{Piece(device), Piece(device)},
      given_(device),
      done_(device) {}

Staging::Piece& Staging::piece(std::int64_t number, std::int64_t floats) {
  Piece& out = pieces_[static_cast<std::size_t>(number % 2)];
  const std::int64_t size = std::min(piece_floats_, floats);
  if (!out.memory.defined() || out.memory.numel() < size)
    out.memory = pinned_tensor({size}, torch::kFloat32, device_);
  return out;
}

void Staging::to_host(const torch::Tensor& values, std::span<float> host) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t floats = values.numel(), size = piece_floats_;
  given_.set();
  const c10::StreamGuard guard(side_);
  given_.hold_back(side_);
  const auto begin = [&](std::int64_t at) {
    const std::int64_t count = std::min(size, floats - at);
    Piece& to = piece(at / size, floats);
    to.memory.narrow(0, 0, count).copy_(values.narrow(0, at, count), non_blocking);
    to.crossed.set(side_);
  };
  if (floats > 0) begin(0);
  for (std::int64_t at = 0; at < floats; at += size) {
    if (at + size < floats) begin(at + size);
    Piece& from = piece(at / size, floats);
    from.crossed.wait();
    std::memcpy(host.data() + at, from.memory.data_ptr<float>(),
                bytes_of(std::min(size, floats - at)));
  }
}

void Staging::to_device(std::span<const float> host, torch::Tensor values) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t floats = values.numel(), size = piece_floats_;
  const c10::Stream current = current_stream(device_);
  given_.set(current);
  {
    const c10::StreamGuard guard(side_);
    given_.hold_back(side_);
    for (std::int64_t at = 0; at < floats; at += size) {
      const std::int64_t count = std::min(size, floats - at);
      Piece& through = piece(at / size, floats);
      through.crossed.wait();  // what it held before
      std::memcpy(through.memory.data_ptr<float>(), host.data() + at, bytes_of(count));
      values.narrow(0, at, count).copy_(through.memory.narrow(0, 0, count), non_blocking);
      through.crossed.set(side_);
    }
    done_.set(side_);
  }
  done_.hold_back(current);
}

}  // namespace gossipd
