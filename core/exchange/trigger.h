// core/exchange/trigger.h - when a training node opens an exchange on a link, and which blocks go.
//
// The problem: a model changes with every step, and saying every change costs more than it helps.
//
// The answer is one of three rules (ExchangePolicy::trigger), asked once per look and link:
//
//   change   A block goes when its relative change ‖x − p‖/‖p‖ exceeds
//            θ·max(floor, (η/η_peak)^power), after Ho, Wu and Liu (CCGRID 2018). With power 1 the
//            number of steps between two exchanges stays constant as the learning rate decays. At
//            least `period_steps` own steps lie between two openings on a link (in the lab, even
//            spacing won over bursts), unless the model has changed by `urgent_change` since
//            (off): one that moves so fast is far from its neighbours' before a period is over.
//            Of a block in top_k as many of its largest entries go as have changed by more than
//            `entry_threshold` usual steps, with the same factor of θ (a hard threshold: Sahu et
//            al., NeurIPS 2021; counted for each block).
//   period   Every block goes, `period_steps` own steps after the last turn (local SGD, gossiped).
//   budget   Like change, but θ is found. A token bucket fills with `budget_bytes_per_s` up to
//            `budget_burst_s` of it; every turn takes its bytes out and may overdraw it; nothing
//            goes while it is empty. θ follows the fill f by d ln θ / dt = budget_gain·(1/2 − f),
//            so it settles where the bucket stays half full: the budget is just used, by the
//            blocks and links that changed most.
//
// The trigger decides only while a node trains. A first turn, a new link, leaving and the final
// exchange follow their own rule (core/node/rounds.cpp). One Trigger per node. Pure; core strand.
// Steps are own optimiser steps; bytes are message bytes before framing and TLS.
#pragma once

#include "core/exchange/policy.h"

namespace gossipd {

inline constexpr double budget_burst_s = 4.0;
inline constexpr double budget_gain = 1.0;  // per second
// Bounds of the threshold that `budget` finds.
inline constexpr double found_threshold_min = 1e-5;
inline constexpr double found_threshold_max = 1.0;

// Bytes that may be sent: fills with time up to a burst, may be overdrawn by one turn.
class TokenBucket {
 public:
  TokenBucket(double bytes_per_s, double burst_s)
      : rate_(bytes_per_s), capacity_(bytes_per_s * burst_s), level_(capacity_ / 2) {}
  void fill(double elapsed_s);
  void take(double bytes) { level_ -= bytes; }
  [[nodiscard]] bool empty() const { return level_ <= 0; }
  [[nodiscard]] double share() const;  // fill, within [0, 1]

 private:
  double rate_, capacity_, level_;
};

class Trigger {
 public:
  // One look at the own model.
  struct Round {
    Instant at{};
    double learning_rate = 0;
    double learning_rate_peak = 0;
    double usual_step = 0;  // OwnSteps::usual_step(); 0: not known
    bool looks = true;      // no round that only answers
  };
  struct LinkState {
    double block_change = 0;  // largest relative change of a block
    double change = 0;        // of the model
    bool owes_keyframes = false;
    bool due = false;  // the link has been silent for policy.heartbeat
    Step steps_since_spoken = 0;
  };
  struct Decision {
    bool speak = false;
    // Relative change beyond which a block goes; infinite: only keyframes that are owed; below 0:
    // every block.
    double threshold = 0;
  };

  explicit Trigger(const ExchangePolicy& policy);  // which must outlive it

  void on_round(const Round& round);
  void on_spoken(std::uint64_t bytes) { bucket_.take(static_cast<double>(bytes)); }
  // Whether to open an exchange on the link, and what goes then.
  [[nodiscard]] Decision decide(const LinkState& link);
  // At the last look the model had changed by as much as policy.urgent_change on a link.
  [[nodiscard]] bool is_urgent() const { return urgent_; }
  // An exchange that a neighbour has opened is always answered: what goes then.
  [[nodiscard]] double answer_threshold() const;
  [[nodiscard]] double threshold() const { return threshold_; }  // of this round
  // What a single parameter has to change by to go, absolute; 0: any change may.
  [[nodiscard]] double entry_cut() const { return entry_cut_; }
  [[nodiscard]] bool periodic() const { return policy_.trigger == TriggerRule::period; }

 private:
  [[nodiscard]] bool by_budget() const { return policy_.trigger == TriggerRule::budget; }

  const ExchangePolicy& policy_;
  TokenBucket bucket_;
  double threshold_;
  double entry_cut_ = 0;
  double found_;  // the threshold of `budget`, within found_threshold_min and found_threshold_max
  std::optional<Instant> last_round_;
  bool urgent_ = false;
};

}  // namespace gossipd
