// core/node/box_clock.h - what the box's clock shows, told to neighbours and compared with theirs.
//
// A clock that is wrong harms no training, since the protocol measures time by steady clocks, but
// logs of several boxes cannot be compared then, and certificates are refused. One for each node.
// Pure; whoever drives the node says what the clock shows. Without that nothing is told or found.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/base/types.h"

namespace gossipd {

class BoxClock {
 public:
  BoxClock() = default;
  // It showed `ms` since 1970 at `when`.
  BoxClock(std::uint64_t ms, Instant when) : ms_(ms), when_(when) {}

  // What it shows at `now`; 0: unknown.
  [[nodiscard]] std::uint64_t ms_at(Instant now) const {
    return ms_ == 0 ? 0
                    : ms_ + static_cast<std::uint64_t>(std::max(0.0, seconds(now - when_)) * 1e3);
  }

  // Another one answered with `theirs_ms` to what was asked at `asked` and came back at `now`: by
  // how much it is ahead of this one, to half of the time between. Nothing: one is unknown.
  [[nodiscard]] std::optional<double> seconds_ahead(std::uint64_t theirs_ms, Instant asked,
                                                    Instant now) const {
    if (ms_ == 0 || theirs_ms == 0) return std::nullopt;
    const double own_ms = static_cast<double>(ms_at(now)) - seconds(now - asked) * 0.5e3;
    return (static_cast<double>(theirs_ms) - own_ms) / 1e3;
  }

 private:
  std::uint64_t ms_ = 0;  // 0: nobody has said
  Instant when_{};
};

}  // namespace gossipd
