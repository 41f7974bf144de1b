// tests/unit/core_kernels_support.h - every version of the kernels with vectors of telling sizes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/codec/kernels.h"

namespace gossipd {

inline bool close(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

// Calls f(kernels, size) for every version and size.
template <typename F>
void everywhere(F f) {
  for (const Kernels* version : kernel_versions())
    for (const std::size_t size : {0, 1, 3, 7, 15, 16, 17, 255, 1000, 65536}) {
      CAPTURE(version->name);
      CAPTURE(size);
      f(*version, size);
    }
}

}  // namespace gossipd
