#include "core/exchange/trigger.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gossipd {
namespace {

// A link that is due says what exceeds this part of the threshold.
constexpr double heartbeat_threshold_share = 0.1;
// A longer pause between rounds moves a found threshold no further.
constexpr double round_gap_max_s = 1.0;
constexpr double nothing = std::numeric_limits<double>::infinity();

}  // namespace

void TokenBucket::fill(double elapsed_s) {
  level_ = std::min(capacity_, level_ + rate_ * std::max(0.0, elapsed_s));
}

double TokenBucket::share() const {
  return capacity_ > 0 ? std::clamp(level_ / capacity_, 0.0, 1.0) : 0.0;
}

Trigger::Trigger(const ExchangePolicy& policy)
    : policy_(policy),
      bucket_(policy.budget_bytes_per_s, budget_burst_s),
      threshold_(policy.threshold),
      found_(std::clamp(policy.threshold, found_threshold_min, found_threshold_max)) {}

void Trigger::on_round(const Round& round) {
  const double elapsed_s = last_round_ ? seconds(round.at - *last_round_) : 0;
  last_round_ = round.at;
  if (round.looks) urgent_ = false;
  if (by_budget()) {
    bucket_.fill(elapsed_s);
    found_ *=
        std::exp(budget_gain * (0.5 - bucket_.share()) * std::min(elapsed_s, round_gap_max_s));
    found_ = std::clamp(found_, found_threshold_min, found_threshold_max);
    threshold_ = found_;
    return;
  }
  const double rate =
      round.learning_rate_peak > 0 ? round.learning_rate / round.learning_rate_peak : 1.0;
  const double share =
      std::max(policy_.threshold_by_rate.floor,
               std::pow(std::clamp(rate, 0.0, 1.0), policy_.threshold_by_rate.power));
  threshold_ = policy_.threshold * share;
  entry_cut_ = periodic() ? 0 : policy_.entry_threshold * round.usual_step * share;
}

Trigger::Decision Trigger::decide(const LinkState& link) {
  if (periodic()) {
    const bool over = link.steps_since_spoken >= policy_.period_steps;
    return {over || link.owes_keyframes, over ? 0 : nothing};
  }
  if (by_budget() && bucket_.empty()) return {link.owes_keyframes, nothing};
  // Entries that wait to change enough keep the model's change large.
  const bool urgent = !by_budget() && policy_.entry_threshold == 0 && policy_.urgent_change > 0 &&
                      link.change >= policy_.urgent_change;
  urgent_ = urgent_ || urgent;
  const bool spaced = by_budget() || urgent || link.steps_since_spoken >= policy_.period_steps;
  const bool changed = link.owes_keyframes || link.block_change > threshold_;
  return {spaced && (changed || link.due),
          link.due ? threshold_ * heartbeat_threshold_share : threshold_};
}

double Trigger::answer_threshold() const {
  if (periodic()) return 0;
  return by_budget() && bucket_.empty() ? nothing : threshold_;
}

}  // namespace gossipd
