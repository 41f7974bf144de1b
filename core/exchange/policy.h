// core/exchange/policy.h - when a node speaks to a neighbour, in which codec, and what it believes.
//
// All of this is node policy: two ends of a link may differ, because every message says what it is.
#pragma once

#include "core/base/types.h"
#include "core/codec/codec.h"
#include "core/correction/correction.h"

namespace gossipd {

// Who decides that it is time to speak on a link; the formulas are in trigger.h.
enum class TriggerRule : std::uint8_t {
  change,  // what changed enough since it was last said
  period,  // a number of own steps
  budget,  // change, with the threshold at which a budget of bytes per second is just used up
};
enum class ReplicaFormat : std::uint8_t { fp32, bf16 };

// What a node believes of its own steps and of its neighbours.
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

struct ExchangePolicy {
  bool enabled = true;  // false: a member that trains alone (nothing is sent or mixed)
  TriggerRule trigger = TriggerRule::change;
  Codec codec{CodecId::top_k, 64};
  // finer where the line's round trip keeps exchanges further apart than period_steps: fewer
  // deltas, larger ones
  bool codec_by_delay = true;
  Codec consensus_codec{CodecId::int4};  // first delta on a new link, leaving, final exchange
  // a block that goes whole: fp32 (exact), bf16 or int8; what it loses follows
  Codec keyframe_codec{CodecId::int8};
  // bf16, where the other end says so as well: half the memory of a link
  ReplicaFormat replicas = ReplicaFormat::fp32;
  Step round_steps = 2;  // own steps between two looks at the model
  // A block is sent when ‖x − published‖ > threshold · max(floor, (η/η_peak)^power) · ‖published‖.
  double threshold = 0.01;
  double threshold_power = 1.0;
  double threshold_floor = 0.05;
  // Own steps between two openings on a link: exactly for `period`, at least for `change`.
  Step period_steps = 8;
  double budget_bytes_per_s = 0;                         // budget: of this node, all links together
  Duration heartbeat = std::chrono::milliseconds(2000);  // speak at least so often, changed or not
  // Mixing: gain of an exchange is mixing / 2k, k the larger number of exchanges that one of its
  // ends has open.
  double mixing = 1.0;
  // Of what the two models of an exchange have moved in the mean since the last one on their link,
  // so much goes on top, divided by the node's links: momentum of the whole cluster's model. Only
  // while training.
  double outer_momentum = 0.5;
  bool outer_momentum_by_delay = true;  // more of it on a far line: outer_momentum_for()
  double age_decay = 0.0;               // κ: gain / (1 + κ · age in own steps)
  CorrectionPolicy correction;          // of models that are old or worse
  double joiner_weight = 0.05;          // weight of a node that just came, rising to 1 …
  Step joiner_steps = 200;              // … over so many steps
  std::size_t bulk_window_bytes = std::size_t{8} << 20;  // on one link's way to the socket
  double consensus_bound = 0.004;                        // the final exchange ends below it
  GuardPolicy guard;
};

// Outer momentum on a line whose round trip takes `periods` times period_steps own steps: the pace
// 1 / (1 - μ) rises with the root of the time between two exchanges, to five thirds at most, as
// DiLoCo takes more momentum the rarer its averages are. None stays none.
[[nodiscard]] double outer_momentum_for(const ExchangePolicy&, double periods);

}  // namespace gossipd
