// daemon/checkpoint_pace.h - when the next regular checkpoint is due.
//
// A start has little to lose yet, so pauses begin at a second and double up to `every`: a crash of
// all nodes takes no more than half of what they have trained on since. Writing takes at most a
// twentieth of the time, unless the pause for that were longer than `pause_max` and `every`: one
// write that took hours, as where the process was stopped meanwhile, says little of the next. A
// plain value.
#pragma once

#include <algorithm>

#include "core/base/types.h"

namespace gossipd {

class CheckpointPace {
 public:
  static constexpr Duration pause_first = std::chrono::seconds(1);
  static constexpr Duration pause_max = std::chrono::minutes(10);  // that a slow disk makes
  static constexpr int pause_share = 20;  // times as long as the last write took, at least

  explicit CheckpointPace(Duration every) : every_(every) {}

  // A pause begins.
  void begin(Instant now) {
    began_ = now;
    pause_ = std::min(std::max(2 * pause_, pause_first), every_);
  }
  void on_written(Duration took) { took_ = took; }
  // The end of the pause, which moves with what was written meanwhile.
  [[nodiscard]] Instant due() const {
    const Duration limit = std::max(every_, pause_max);
    const Duration wanted = took_ < limit ? pause_share * took_ : limit;  // cannot overflow
    return began_ + std::max(pause_, std::min(wanted, limit));
  }

 private:
  Duration every_;
  Instant began_{};
  Duration pause_{};
  Duration took_{};  // the last write that succeeded, without what it waited for before
};

}  // namespace gossipd
