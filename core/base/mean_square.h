// core/base/mean_square.h - the mean of the squares of floats, summed in double.
#pragma once

#include <span>

namespace gossipd {

// 0 for no values.
[[nodiscard]] inline double mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

}  // namespace gossipd
