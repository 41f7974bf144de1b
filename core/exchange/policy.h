// core/exchange/policy.h - when a node publishes to a neighbour, in which codec, and what it
// accepts.
//
// Each node has its own policy: every message describes itself, so the two ends of a link may
// differ.
#pragma once

#include <algorithm>

#include "core/base/types.h"
#include "core/codec/codec.h"
#include "core/correction/correction.h"

namespace gossipd {

// What starts an exchange on a link; the formulas are in trigger.h.
enum class TriggerRule : std::uint8_t {
  change,  // enough change since the last publication
  period,  // a number of own steps
  budget,  // change, with the threshold that just uses up a budget of bytes per second
};
enum class ReplicaFormat : std::uint8_t {
  automatic,  // bf16 from bf16_replicas_from parameters on
  fp32,
  bf16
};
// Where a replica in fp32 takes 128 MB.
inline constexpr std::size_t bf16_replicas_from = 32'000'000;

// Limits on a node's own steps and on its neighbours' models.
struct GuardPolicy {
  double magnitude_max = 64.0;  // largest single decoded difference that is accepted
  std::uint32_t refusals_until_quarantine = 3;  // messages refused in a row
  // A neighbour's pull is cut to this multiple of what is usual (transfer_guard.h); 0: never.
  double transfer_reach = 4;
  // Nothing is taken from a neighbour whose loss exceeds this multiple of the members' median; 0:
  // all is.
  double loss_ratio_max = 3;
  // An own look that goes this many times as far as usual is taken back (step_guard.h); 0: none is.
  double step_jump = 6;
};

// Of a link, waiting for the socket: the transport holds no more than four times as much.
constexpr std::size_t bulk_window_bytes_max = std::size_t{1} << 28;

struct ExchangePolicy {
  bool enabled = true;  // false: a member that trains alone (nothing is sent or mixed)
  TriggerRule trigger = TriggerRule::change;
  Codec codec{CodecId::top_k, 64};
  // a finer codec where the round trip exceeds far_line_steps(): fewer and larger deltas
  bool codec_by_delay = true;
  Codec consensus_codec{CodecId::int4};  // first delta on a new link, leaving, final exchange
  // a whole block: fp32 (exact), bf16 or int8, whose error follows with the next delta
  Codec keyframe_codec{CodecId::int8};
  // bf16 halves the memory of a link, if both ends ask for it
  ReplicaFormat replicas = ReplicaFormat::automatic;
  Step round_steps = 2;  // own steps between two looks at the model
  // A block is sent when ‖x − published‖ > threshold · max(floor, (η/η_peak)^power) · ‖published‖.
  double threshold = 0.01;
  struct ByRate {
    double power = 1.0, floor = 0.05;
  } threshold_by_rate;
  // Of a block in top_k as many entries go as have changed by more than this multiple of what a
  // step usually moves a parameter by, with the threshold's factor; 0: always the codec's number.
  // Only for `change`.
  double entry_threshold = 0;
  // Own steps between two openings on a link: exactly for `period`, at least for `change`.
  Step period_steps = 8;
  // For `change` without `entry_threshold`: a model that has changed by so much since it was last
  // said to a neighbour is said at the next look, and looked at after every step; 0: never.
  double urgent_change = 0;
  double budget_bytes_per_s = 0;  // for `budget`: all links of this node together
  Duration heartbeat = std::chrono::milliseconds(2000);  // longest pause, changed or not
  // Mixing: gain of an exchange is mixing / 2k, k the larger number of exchanges that one of its
  // ends has open.
  double mixing = 1.0;
  // Momentum of the cluster's model: this share of the mean movement of the two models since their
  // last exchange is added, divided by the node's links, and as much of own steps is taken back.
  // Only while training.
  double outer_momentum = 0.5;
  bool outer_momentum_by_delay = true;  // less with delay: outer_momentum_for()
  double age_decay = 0.0;               // κ: gain / (1 + κ · age in own steps)
  CorrectionPolicy correction;          // of stale or worse models
  double joiner_weight = 0.05;          // initial weight of a joiner, which rises to 1
  Step joiner_steps = 200;              // in this many steps
  std::size_t bulk_window_bytes = std::size_t{8} << 20;  // of a link, waiting for the socket: least
  double consensus_bound = 0.004;                        // ends the final exchange
  GuardPolicy guard;
};

// Of a model with so many parameters.
[[nodiscard]] inline bool asks_for_bf16(const ExchangePolicy& policy, std::size_t floats) {
  if (policy.replicas == ReplicaFormat::automatic) return floats >= bf16_replicas_from;
  return policy.replicas == ReplicaFormat::bf16;
}

// A line is far from so many own steps a round trip on: exchanges are then rarer than on others.
inline constexpr Step near_line_steps = 8;
[[nodiscard]] inline Step far_line_steps(const ExchangePolicy& policy) {
  return std::max(policy.period_steps, near_line_steps);
}

// Outer momentum where a round trip takes `periods` times far_line_steps() own steps. What own
// steps give back returns round trips later, so a model is μ / (1 − μ) round trips behind; beyond
// one period that number falls with their root.
[[nodiscard]] double outer_momentum_for(const ExchangePolicy&, double periods);

}  // namespace gossipd
