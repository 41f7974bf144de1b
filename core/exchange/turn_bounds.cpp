#include "core/exchange/turn_bounds.h"

#include "core/base/result.h"

namespace gossipd {

std::optional<Reject> TurnBounds::admit(const TurnHeader& header,
                                        std::span<const TurnRecord> records) {
  if (records.empty() && !header.last) return Reject::endless_turn;
  const auto kind_of = [](const TurnRecord& record) {
    return static_cast<std::uint8_t>(is_whole(record) ? 1 : 2);
  };
  for (std::size_t i = 0; i < records.size(); ++i) {
    GOSSIPD_ASSERT(records[i].block < said_.size());
    std::uint8_t& said = said_[records[i].block];
    if ((said & kind_of(records[i])) == 0) {
      said |= kind_of(records[i]);
      continue;
    }
    for (const TurnRecord& taken : records.first(i))
      said_[taken.block] &= static_cast<std::uint8_t>(~kind_of(taken));
    return Reject::endless_turn;
  }
  return std::nullopt;
}

}  // namespace gossipd
