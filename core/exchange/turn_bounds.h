// core/exchange/turn_bounds.h - how much a peer may say before it has to end its turn.
//
// The problem: what a turn brings is kept until its end, so a turn without an end takes ever more
// memory.
//
// The answer: a well-behaved speaker sends, in one turn and for each block, at most one record that
// carries the whole block and one delta after it, and every message but the last has a record. So a
// turn has at most turn_records_per_block_max records for each block of the model. A peer that has
// lost the connection sends again what was lost, so the count starts anew each time the link opens.
// Pure; one owner. Memory: one byte for each block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/wire/turn.h"

namespace gossipd {

inline constexpr std::size_t turn_records_per_block_max = 2;  // whole, then a delta

class TurnBounds {
 public:
  // A turn begins, or is heard from anew.
  void begin(std::size_t blocks) { said_.assign(blocks, 0); }
  // A message of it. Reject::endless_turn: it goes beyond the bounds, and nothing has changed. The
  // records name blocks of the schema.
  [[nodiscard]] std::optional<Reject> admit(const TurnHeader&, std::span<const TurnRecord>);

 private:
  std::vector<std::uint8_t> said_;  // of each block, which kinds of record this turn has brought
};

}  // namespace gossipd
