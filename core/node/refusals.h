// core/node/refusals.h - sessions that were refused lately, so that both ends can say why.
//
// One entry, with a count, for each peer and kind (refused by us or by the peer, and the code), so
// repetition takes no more room. When all entries are taken the kind with the most entries loses
// its oldest: a flood of one kind, from however many addresses, does not drive out the one refusal
// that an operator looks for.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

struct Refusal {
  Instant at{};  // the latest
  bool by_us = false;
  std::string peer;  // name or endpoint
  Error reason;      // the latest words
  std::uint64_t count = 1;
};
inline constexpr std::size_t refusals_max = 32;

class RefusalLog {
 public:
  void note(bool by_us, std::string peer, Error reason, Instant now);
  [[nodiscard]] const std::deque<Refusal>& latest() const { return entries_; }  // newest last

 private:
  void make_room();
  std::deque<Refusal> entries_;  // at most refusals_max, no kind and peer twice
};

}  // namespace gossipd
