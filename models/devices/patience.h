// models/devices/patience.h - waiting for a device that may never answer.
//
// A wait of CUDA's own has no end when a device or another rank hangs. This one asks again and
// again, and gives up. Plain C++; any thread.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace gossipd {

// Longer than any step; shorter than somebody takes to look at a node that stands still.
inline constexpr std::chrono::milliseconds device_silence_max = std::chrono::minutes(10);

class DeviceSilent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Until `done` says so. Throws DeviceSilent after `patience`, and what `done` throws.
template <typename Done>
void await_device(const Done& done, const std::string& device,
                  std::chrono::milliseconds patience = device_silence_max) {
  constexpr auto busy_for = std::chrono::microseconds(100);
  constexpr auto nap = std::chrono::microseconds(50);
  const auto began = std::chrono::steady_clock::now();
  while (!done()) {
    const auto waited = std::chrono::steady_clock::now() - began;
    if (waited > patience)
      throw DeviceSilent(device + " has not finished its work after " +
                         std::to_string(patience.count() / 1000) +
                         " s; it or another device of this node hangs (nvidia-smi and the kernel's "
                         "log may say why)");
    if (waited < busy_for)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(nap);
  }
}

}  // namespace gossipd
