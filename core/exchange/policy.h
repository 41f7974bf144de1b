// core/exchange/policy.h - when a node speaks to a neighbour, in which codec, and what it counts.
//
// All of this is node policy: two ends of a link may differ, because every frame says what it is.
#pragma once

#include "core/base/types.h"
#include "core/exchange/codec.h"

namespace gossipd {

struct ExchangePolicy {
  bool enabled = true;              // false: a member that trains alone (nothing is sent or mixed)
  Codec codec{CodecId::top_k, 32};
  Codec fine_codec{CodecId::int8};  // first delta on a new link, leaving, final exchange
  Step round_steps = 4;             // own steps between two looks at the model
  // A block is sent when ‖x − published‖ > threshold · max(floor, (η/η_peak)^power) · ‖published‖.
  double threshold = 0.01;
  double threshold_power = 1.0;
  double threshold_floor = 0.05;
  Duration heartbeat = std::chrono::milliseconds(2000);  // speak at least so often, changed or not
  // Mixing: gain of one turn on a link is mixing / (1 + largest degree of both ends), less for sparse codecs.
  double mixing = 0.4;
  double age_decay = 0.0;     // κ: gain / (1 + κ · age in own steps)
  double future_position = 1.0;    // c: how far a replica is moved along the own drift to the time it is compared with
  double drift_window_steps = 32;  // moving average behind the drift
  double joiner_weight = 0.05;     // weight of a node that just came, rising to 1 …
  Step joiner_steps = 200;         // … over so many steps
  double magnitude_max = 64.0;     // largest single decoded difference that is believed
  std::size_t bulk_window_bytes = std::size_t{8} << 20;  // on one link's way to the socket
  double spread_bound = 0.004;     // the final exchange ends below it
  std::uint32_t refusals_until_quarantine = 3;
};

// Why a message or a block changed nothing. Counted per link.
enum class Reject : std::uint8_t {
  malformed, too_large, foreign_schema, unknown_block, out_of_turn, base_mismatch, not_finite, absurd_magnitude, bad_gain,
  count_
};
[[nodiscard]] const char* to_string(Reject);

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
  std::uint64_t bytes_sent = 0;        // messages of this link, before framing and TLS
  std::uint64_t bytes_received = 0;
  std::uint64_t refused[static_cast<std::size_t>(Reject::count_)] = {};
  double change = 0;        // gauge: ‖x − published‖ / ‖published‖ at the last look
  double threshold = 0;     // gauge: what it was held against
  double weight = 0;        // gauge: gain applied in the last turn
  double correction = 0;    // gauge: norm of the future-position correction in the last turn, relative to ‖x‖
  double transfer = 0;      // gauge: norm of the last transfer, relative to ‖x‖
  double spread = 1;        // gauge: ‖received − published‖ / ‖published‖
  [[nodiscard]] std::uint64_t refused_total() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t n : refused) sum += n;
    return sum;
  }
};

}  // namespace gossipd
