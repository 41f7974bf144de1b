// core/exchange/counters.h - what one link has sent, taken and refused: for the status, the metrics
// and the lab. Nothing is decided by it but what is noted beside a field.
#pragma once

#include "core/codec/codec.h"
#include "core/wire/reject.h"

namespace gossipd {

// Of one link since it was first opened; monotone except the gauges.
struct ExchangeCounters {
  std::uint64_t turns_spoken = 0;
  std::uint64_t turns_heard = 0;
  std::uint64_t turns_suppressed = 0;  // it was our turn and nothing had changed enough
  std::uint64_t deltas_sent = 0;       // blocks
  std::uint64_t deltas_applied = 0;
  std::uint64_t deltas_duplicate = 0;  // re-sent after a reconnect, already applied
  std::uint64_t deltas_resent = 0;
  std::uint64_t keyframes_sent = 0;
  std::uint64_t keyframes_applied = 0;
  std::uint64_t transfers_clipped = 0;     // exchanges of which a block was not taken whole …
  std::uint64_t transfers_distrusted = 0;  // … and nothing at all, by the peer's loss
  std::uint64_t bytes_sent = 0;            // messages of this link, before framing and TLS
  std::uint64_t bytes_received = 0;
  std::uint64_t turn_bytes = 0;  // gauge: of bytes_sent, the turn spoken last
  std::uint64_t refused[static_cast<std::size_t>(Reject::count_)] = {};
  double change = 0;     // gauge: ‖x − published‖ / ‖published‖ at the last look
  double threshold = 0;  // gauge: what it was held against
  Codec codec{CodecId::mirror, 0};  // gauge: of the turn spoken last; mirror: none yet
  double gain = 0;                  // gauge: gain applied in the last turn
  // gauge: norm of the future-position correction in the last turn, relative to ‖x‖
  double correction = 0;
  // gauge: factor on the peer's weight in the last turn, by its forecast loss
  double trust = 1;
  double transfer = 0;            // gauge: norm of the last transfer, relative to ‖x‖
  double consensus_distance = 1;  // gauge: ‖received − published‖ / ‖published‖
  [[nodiscard]] std::uint64_t refused_total() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t n : refused) sum += n;
    return sum;
  }
};

}  // namespace gossipd
