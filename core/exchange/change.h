// core/exchange/change.h - relative sizes of differences between a model and its replicas.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/codec/kernels.h"

namespace gossipd {

inline constexpr double norm_squared_min = 1e-30;  // a divisor is at least this
// A block that is nearly zero has no meaningful relative change: its reference counts as this.
inline constexpr double reference_rms_min = 1e-3;

inline void add(ChangeNorms& sum, const ChangeNorms& norms) {
  sum.change_squared += norms.change_squared;
  sum.reference_squared += norms.reference_squared;
}

// Of one block.
[[nodiscard]] inline double relative(const ChangeNorms& norms, std::size_t floats) {
  const double floor = reference_rms_min * reference_rms_min * static_cast<double>(floats);
  return std::sqrt(norms.change_squared / std::max(norms.reference_squared, floor));
}

// Of a whole model.
[[nodiscard]] inline double ratio(const ChangeNorms& norms) {
  return std::sqrt(norms.change_squared / std::max(norms.reference_squared, norm_squared_min));
}

}  // namespace gossipd
