// core/base/dense_baseline.h - the traffic that savings are measured against, one definition for
// the daemon, the lab's rows and the quickstart.
#pragma once

#include <cstdint>

namespace gossipd {

// Bytes that one node sends in `steps` averages of a model of `floats` parameters in fp32: 8 a
// parameter and step, as a ring all-reduce among many nodes (2 · 4 · floats · (n - 1) / n).
[[nodiscard]] constexpr std::uint64_t dense_baseline_bytes(std::uint64_t steps,
                                                           std::uint64_t floats) {
  return steps * 2 * 4 * floats;
}

}  // namespace gossipd
