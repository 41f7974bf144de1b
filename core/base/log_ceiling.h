// core/base/log_ceiling.h - keeps what others do from filling the log.
//
// A line about somebody else (it has a word `peer=` or `endpoint=`) comes as often as that somebody
// likes. So of one kind (`event=`, `code=`) and address few are written in a period. A ceiling
// holds for all kinds and addresses together, since both can be made up. What was left out is told
// at the end of the period: how often, by kind and address for those that were left out most.
//
// Pure: the caller brings the time and writes the lines. One owner, one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

class LogCeiling {
 public:
  struct Limits {
    std::uint32_t alike_max = 10;  // lines of one kind and address, in a period
    // The same for `event=turned-away`, which names many reasons under one code.
    std::uint32_t turned_away_max = 20;
    std::uint32_t from_others_max = 300;  // lines about others in all
    std::uint32_t own_alike_max = 600;    // lines of one kind about this node itself
    std::size_t kinds_max = 512;          // told apart; the rest is counted as one
    std::size_t told_max = 16;            // kinds and addresses that are named with their counts
    Duration period = std::chrono::seconds(60);
  };

  LogCeiling() = default;
  explicit LogCeiling(const Limits& limits) : limits_(limits) {}

  // Whether this line is to be written; if not, it has been counted.
  [[nodiscard]] bool admits(std::string_view words, Instant now);
  // When a period has ended: lines that tell what was left out in it, to be written as they are.
  [[nodiscard]] std::vector<std::string> left_out(Instant now);

 private:
  struct Count {
    std::uint32_t written = 0;
    std::uint64_t left_out = 0;
  };

  Limits limits_;
  bool running_ = false;  // a period has begun
  Instant ends_{};
  std::map<std::string, Count> kinds_;
  std::uint32_t from_others_ = 0;   // written
  std::uint64_t beyond_kinds_ = 0;  // left out of kinds that are not told apart
};

}  // namespace gossipd
