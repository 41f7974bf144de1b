// models/devices/device_names.h - what a node's setting for devices may say. Plain text; no device
// is looked for.
//
//   auto            the first CUDA device, else the CPU
//   cpu | cuda | cuda:N
//   cuda:all        every CUDA device of the box
//   cuda:0,cuda:1   several devices are one node: each has a part of every batch. cpu,cpu: ranks on
//                   one CPU
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace gossipd {

inline constexpr std::size_t node_devices_max = 16;

// Index of "cuda" (0) or "cuda:N"; -1 for any other word.
[[nodiscard]] int cuda_index(std::string_view device);

// The parts of a list, as they are written. Code "bad-config"; the text names the word that is
// wrong and what would do.
[[nodiscard]] Result<std::vector<std::string>> split_devices(const std::string& text);

}  // namespace gossipd
