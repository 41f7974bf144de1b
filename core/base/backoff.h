// core/base/backoff.h - how long to wait after the same thing went wrong again.
//
// A fault that lasts must cost less and less, and nodes that met it together must not come back
// together: waits double up to a bound, and periods are spread at random. Pure values.
#pragma once

#include <algorithm>

#include "core/base/random.h"
#include "core/base/types.h"

namespace gossipd {

class Backoff {
 public:
  Backoff(Duration least, std::uint32_t doublings_max)
      : least_(least), doublings_max_(doublings_max) {}

  // The wait after one more failure: `least`, then twice as long every time.
  Duration fail() {
    const Duration wait = least_ * (std::uint64_t{1} << failures_);
    failures_ = std::min(failures_ + 1, doublings_max_);
    return wait;
  }
  void forget() { failures_ = 0; }

 private:
  Duration least_;
  std::uint32_t doublings_max_;  // at most 31, so that no wait overflows
  std::uint32_t failures_ = 0;   // that count; at most doublings_max_
};

// A duration within a part of `middle` on both sides of it.
[[nodiscard]] inline Duration spread(Duration middle, double part, Random& random) {
  return from_seconds(seconds(middle) * (1 - part + 2 * part * random.uniform()));
}

}  // namespace gossipd
