// core/node/timers.h - when a node looks at what no event tells it.
//
// The problem: silence, a quiet member or a seed to be asked again announce themselves by no event,
// so somebody has to look; and some events, as the loss of a link, make the next look urgent.
//
// The answer: a table with one due time for each kind of look. A look that is taken is due again a
// period later; by() brings it forward and never puts it off. Pure; one owner, the core strand.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/types.h"

namespace gossipd {

enum class Duty : std::uint8_t {
  look,     // silent sessions, pings, news and files that are due
  overlay,  // dials, probes, rotation of links
  tick,     // own record, stats, credit of claims, the state on disk
  count_
};

class Timers {
 public:
  // Due at the latest then.
  void by(Duty duty, Instant at) { due(duty) = std::min(due(duty), at); }
  // True: it is due, and next a period from now.
  [[nodiscard]] bool take(Duty duty, Duration period, Instant now) {
    if (now < due(duty)) return false;
    due(duty) = now + period;
    return true;
  }
  // True: what this node says of itself may go out at once, and next a period from now.
  [[nodiscard]] bool may_tell(Duration period, Instant now) {
    if (now < may_tell_) return false;
    may_tell_ = now + period;
    return true;
  }
  // Words between the first ticks of training, which begins now. They are no duty: a look that is
  // due anyway takes them, ever less often.
  void begin_early_words(Instant now) { early_since_ = early_word_ = now; }
  [[nodiscard]] bool take_early_word(Duration length, Instant now) {
    if (!early_since_ || now < early_word_ + (now - *early_since_) / 3) return false;
    early_word_ = now;
    if (now > *early_since_ + length) early_since_.reset();
    return early_since_.has_value();
  }
  [[nodiscard]] Instant next() const { return *std::ranges::min_element(due_); }

 private:
  Instant& due(Duty duty) { return due_[static_cast<std::size_t>(duty)]; }

  std::array<Instant, static_cast<std::size_t>(Duty::count_)> due_{};  // at first all are due
  Instant may_tell_{};
  std::optional<Instant> early_since_;
  Instant early_word_{};
};

}  // namespace gossipd
