// core/node/control_allowance.h - how fast one peer may send control messages.
//
// The problem: a control message costs its reader more than its sender. A few bytes ask for the
// job, which is 60 KB; a digest is answered by all records that differ. Asked at the pace of the
// line, that is all a node would do. So every peer has an allowance that fills with time; each
// message takes its price from it, by its size and by the cost of the answer, and so does a new
// link. An honest peer needs far less, even when its messages have waited while this node stood
// still; a peer that has used its allowance up is out of order. Pure; one owner.
#pragma once

#include <optional>

#include "core/wire/control.h"

namespace gossipd {

inline constexpr double allowance_per_second = 10'000;
inline constexpr double allowance_max = 200'000;
inline constexpr double price_of_message = 10;  // 1,000 a second, 20,000 at once …
inline constexpr double price_of_byte = 0.01;   // … or 1 MB a second, 20 MB at once
// each pays for its answer by the time the line takes
inline constexpr double price_of_file_request = 1;
inline constexpr double price_of_digest = 5'000;        // one a session, and 40 more
inline constexpr double price_of_job_request = 10'000;  // one a session, and 20 more
// 20 a second, 400 at once: each is written to disk and gossiped
inline constexpr double price_of_link = 500;

class ControlAllowance {
 public:
  // False: the peer is beyond its allowance, and the message is not to be answered.
  [[nodiscard]] bool admit(const Control&, std::size_t bytes, Instant now);
  [[nodiscard]] bool admit_link(Instant now) { return take(price_of_link, now); }

 private:
  bool take(double price, Instant now);

  double left_ = allowance_max;
  std::optional<Instant> filled_;  // when left_ was last filled; nothing: never yet
};

}  // namespace gossipd
