// core/node/round_trip.h - how long a session's line takes for a question and its answer.
//
// A round trip may take longer than the time between two pings, so one ping is measured at a time
// and the others only keep the session alive. Two figures come out: the smoothed round trip, with
// whatever this node itself has on the way, and the shortest one, which is what the line takes. One
// for each session. Pure.
#pragma once

#include <algorithm>
#include <optional>

#include "core/base/types.h"

namespace gossipd {

class RoundTrip {
 public:
  [[nodiscard]] bool due(Instant now) const { return now >= next_; }

  // A ping goes out; it is measured unless one sent at most `patience` ago is. `nonce` is not 0.
  void on_ping(std::uint64_t nonce, Duration period, Duration patience, Instant now) {
    next_ = now + period;
    if (nonce_ != 0 && now - sent_ <= patience) return;
    nonce_ = nonce;
    sent_ = now;
  }

  [[nodiscard]] bool awaits(std::uint64_t nonce) const { return nonce_ != 0 && nonce == nonce_; }

  // When the measured ping was sent; nothing: the answer is to another one.
  std::optional<Instant> on_pong(std::uint64_t nonce, Instant now) {
    if (!awaits(nonce)) return std::nullopt;
    const double sample = seconds(now - sent_);
    least_seconds_ = smoothed_seconds_ == 0 ? sample : std::min(least_seconds_, sample);
    smoothed_seconds_ =
        smoothed_seconds_ == 0 ? sample : smoothed_seconds_ + 0.25 * (sample - smoothed_seconds_);
    nonce_ = 0;
    return sent_;
  }

  [[nodiscard]] double smoothed_seconds() const { return smoothed_seconds_; }  // 0: not measured
  [[nodiscard]] double least_seconds() const { return least_seconds_; }

 private:
  Instant next_{};           // of the next ping
  std::uint64_t nonce_ = 0;  // of the ping that is measured; 0: none
  Instant sent_{};           // when that ping went out
  double smoothed_seconds_ = 0;
  double least_seconds_ = 0;
};

}  // namespace gossipd
