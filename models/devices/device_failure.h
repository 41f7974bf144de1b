// models/devices/device_failure.h - what a failure on a device, or on one of several, is to the
// node.
//
// A person is told by its type what to do: less memory, another file, another device. So a type
// that says so has to outlive the way from a library, or from a rank, to the trainer. Without
// LibTorch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "models/devices/rank_threads.h"

namespace gossipd {

// No room was left; the text has whose memory it was and what the library says: wanted, free,
// total.
class OutOfMemory : public std::runtime_error {
 public:
  enum class Memory : std::uint8_t {
    device,  // of the device that trains; of a CPU, main memory
    main,    // the machine's, beside a device with memory of its own
  };
  explicit OutOfMemory(const std::string& text, Memory memory = Memory::device)
      : std::runtime_error(text), memory_(memory) {}
  [[nodiscard]] Memory memory() const { return memory_; }

 private:
  Memory memory_;
};

// Whether a library's words for exhausted memory mean the host's, whatever the device.
[[nodiscard]] bool says_main_memory(std::string_view text);

// As the node's own failure: the text names rank and device, and OutOfMemory stays what it is. A
// DataError is passed on as it is, because a file is no rank's.
[[noreturn]] void rethrow_for_node(const RankFailure&, const std::string& device);

}  // namespace gossipd
