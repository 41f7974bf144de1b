// core/exchange/trigger.h - when a training node speaks on a link, and which blocks it says.
//
// One Trigger per node. It sees every round (a look at the model) and every turn that was spoken;
// decide() answers for one link. Rules, by ExchangePolicy::policy:
//
//   change     a block whose relative change ‖x − p‖/‖p‖ is above θ·max(floor, (η/η_peak)^power).
//              After Ho, Wu and Liu (CCGRID 2018); power 1 keeps the number of steps between two
//              speeches constant. At the earliest `period_steps` own steps after the last speech on
//              the link: even spacing won over bursts in the lab.
//   period     after `period_steps` own steps since the last speech on the link; then every block
//              (local SGD, gossiped).
//   quadratic  the same after H = max(period_steps, ⌊(α/η)²⌋) steps: QSR (Gu et al., ICLR 2024).
//   budget     change, but θ is found: a token bucket fills with `budget_bytes_per_s` up to
//              `budget_burst_s` of it, every turn takes its bytes out (also below zero), and no
//              block goes while it is empty. θ follows the fill f by d ln θ / dt = budget_gain·(1/2
//              − f): it settles where the bucket stays half full, that is, where the budget is just
//              used, by the blocks and links that changed most.
//   automatic  change, but θ is found from slowdown_max = s. A model at relative distance D from
//              its neighbours' is behind (or beside) them by as many steps as its drift u needs to
//              cover D: D/‖u‖. Over a horizon of T steps that is a fraction D/(‖u‖·T) of its
//              progress. θ is controlled so that the largest D of the open links
//              (counters.consensus_distance) stays at s·‖u‖·T: ln θ += automatic_gain·ln(s·‖u‖·T /
//              D) in a round that sees a new D, both ‖·‖ relative to ‖x‖. Our own rule; a proxy of
//              the slow-down (it takes all of D as lag), not a proof.
//
// Only what a training node says while it trains is decided here: a first turn, a new link, leaving
// and the final exchange follow their own rule (core/node/rounds.cpp). Pure; core strand. Units:
// steps are own optimiser steps, bytes are messages before framing and TLS.
#pragma once

#include "core/exchange/policy.h"

namespace gossipd {

inline constexpr double budget_burst_s = 4.0;
inline constexpr double budget_gain = 1.0;           // per second
inline constexpr double automatic_gain = 0.1;        // per round that sees a new consensus distance
inline constexpr double found_threshold_min = 1e-5;  // bounds of a threshold that is found
inline constexpr double found_threshold_max = 1.0;

// Own steps between two speeches on a link; `learning_rate` 0 is taken as not known: the least.
[[nodiscard]] Step quadratic_period(Step least, double alpha, double learning_rate);

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
  struct Round {
    Instant at{};
    double learning_rate = 0;
    double learning_rate_peak = 0;
    double drift = 0;  // ‖displacement per step‖ / ‖x‖, by gradients alone; 0: not known
    // the largest of the open links, if a turn has been spoken since the last round; 1: not known
    double consensus_distance = 1;
    bool warming_up = false;
  };
  struct LinkState {
    double block_change = 0;  // largest relative change of a block
    double model_change = 0;  // relative change of the whole model
    bool owes_keyframes = false;
    bool due = false;  // the heartbeat is
    Step steps_since_spoken = 0;
  };
  struct Decision {
    bool speak = false;
    // relative change from which on a block is said; infinite: only keyframes that are owed
    double threshold = 0;
  };

  explicit Trigger(const ExchangePolicy& policy);  // which must outlive it

  void on_round(const Round& round);
  void on_spoken(std::uint64_t bytes) { bucket_.take(static_cast<double>(bytes)); }
  // Whether to open an exchange on the link, and what is said then.
  [[nodiscard]] Decision decide(const LinkState& link) const;
  // An exchange that a neighbour has opened is answered in any case; from which change on a block
  // is said then.
  [[nodiscard]] double answer_threshold() const;
  [[nodiscard]] double threshold() const { return threshold_; }  // of this round
  [[nodiscard]] bool periodic() const;
  // of this round; meaningful if periodic()
  [[nodiscard]] Step period() const { return period_; }
  [[nodiscard]] bool needs_drift() const {
    return policy_.trigger == TriggerRule::automatic && !by_budget();
  }

 private:
  [[nodiscard]] bool by_budget() const;

  const ExchangePolicy& policy_;
  TokenBucket bucket_;
  double threshold_;
  double found_;  // threshold of budget and automatic
  Step period_;
  Instant last_round_{};
  bool had_round_ = false;
};

}  // namespace gossipd
