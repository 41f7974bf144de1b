#include "core/exchange/trigger.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gossipd {
namespace {

// what stayed below the threshold for so long is said after all
constexpr double heartbeat_threshold_share = 0.1;
// a longer pause between rounds moves a found threshold no further
constexpr double round_gap_max_s = 1.0;
constexpr double control_factor_max = 1.25;  // of a found threshold, per round
constexpr double nothing = std::numeric_limits<double>::infinity();

}  // namespace

Step quadratic_period(Step least, double alpha, double learning_rate) {
  if (learning_rate <= 0) return least;
  const double steps = std::floor((alpha / learning_rate) * (alpha / learning_rate));
  return std::max(least, static_cast<Step>(std::min(steps, 1e15)));
}

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
      found_(std::clamp(policy.threshold, found_threshold_min, found_threshold_max)),
      period_(policy.period_steps) {}

bool Trigger::periodic() const {
  return policy_.trigger == TriggerRule::period || policy_.trigger == TriggerRule::quadratic;
}

bool Trigger::by_budget() const {
  return policy_.trigger == TriggerRule::budget ||
         (policy_.trigger == TriggerRule::automatic && policy_.budget_bytes_per_s > 0);
}

void Trigger::on_round(const Round& round) {
  const double elapsed_s = had_round_ ? seconds(round.at - last_round_) : 0;
  last_round_ = round.at;
  had_round_ = true;
  if (by_budget()) {
    bucket_.fill(elapsed_s);
    found_ *=
        std::exp(budget_gain * (0.5 - bucket_.share()) * std::min(elapsed_s, round_gap_max_s));
  } else if (policy_.trigger == TriggerRule::automatic && round.drift > 0 &&
             round.consensus_distance > 0 && round.consensus_distance < 1) {
    const double wanted = policy_.slowdown_max * round.drift * policy_.horizon_steps;
    found_ *= std::clamp(std::pow(wanted / round.consensus_distance, automatic_gain),
                         1 / control_factor_max, control_factor_max);
  }
  found_ = std::clamp(found_, found_threshold_min, found_threshold_max);
  // A warm-up starts near 0, which is no reason to be silent: it goes by the rate it leads to, as
  // in the rule's paper.
  const double rate_of_period = round.warming_up ? round.learning_rate_peak : round.learning_rate;
  period_ = policy_.trigger == TriggerRule::quadratic
                ? quadratic_period(policy_.period_steps, policy_.quadratic_alpha, rate_of_period)
                : policy_.period_steps;
  if (policy_.trigger == TriggerRule::budget || policy_.trigger == TriggerRule::automatic) {
    threshold_ = found_;
  } else {
    const double rate =
        round.learning_rate_peak > 0 ? round.learning_rate / round.learning_rate_peak : 1.0;
    threshold_ =
        policy_.threshold * std::max(policy_.threshold_floor,
                                     std::pow(std::clamp(rate, 0.0, 1.0), policy_.threshold_power));
  }
}

Trigger::Decision Trigger::decide(const LinkState& link) const {
  if (periodic()) {
    const bool over = link.steps_since_spoken >= period_;
    return {over || link.owes_keyframes, over ? 0 : nothing};
  }
  if (by_budget() && bucket_.empty()) return {link.owes_keyframes, nothing};
  const bool spaced =
      policy_.trigger != TriggerRule::change || link.steps_since_spoken >= policy_.period_steps;
  const double limit = link.due ? threshold_ * heartbeat_threshold_share : threshold_;
  if (policy_.scope == ChangeScope::model) {
    const bool changed = link.owes_keyframes || link.model_change > threshold_;
    const bool said = link.model_change > limit;
    return {spaced && (changed || link.due), said ? 0 : nothing};
  }
  const bool changed = link.owes_keyframes || link.block_change > threshold_;
  return {spaced && (changed || link.due), limit};
}

double Trigger::answer_threshold() const {
  if (periodic()) return 0;
  if (by_budget() && bucket_.empty()) return nothing;
  return policy_.scope == ChangeScope::model ? 0 : threshold_;
}

}  // namespace gossipd
