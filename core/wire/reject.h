// core/wire/reject.h - why a turn, or one block of it, was refused and has changed nothing.
#pragma once

#include <cstdint>

namespace gossipd {

enum class Reject : std::uint8_t {
  malformed,
  too_large,
  foreign_schema,
  unknown_block,
  out_of_turn,
  base_mismatch,
  not_finite,
  absurd_magnitude,
  bad_gain,
  hash_mismatch,
  endless_turn,
  count_
};
[[nodiscard]] const char* to_string(Reject);

}  // namespace gossipd
