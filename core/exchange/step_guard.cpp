#include "core/exchange/step_guard.h"

#include <algorithm>
#include <cmath>

namespace gossipd {
namespace {

constexpr double push_memory = 0.9;       // of a push, a look later
constexpr double allowance_decay = 0.98;  // for each look that has not jumped

double per_step(const Movement& movement, Step steps) {
  return std::sqrt(movement.moved_squared) / static_cast<double>(std::max<Step>(steps, 1));
}

}  // namespace

void RecentValues::add(double value) { values_[count_++ % size] = value; }

double RecentValues::median() const {
  if (count() == 0) return 0;
  std::array<double, size> sorted = values_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(count()),
             middle = sorted.begin() + static_cast<std::ptrdiff_t>(count() / 2);
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

double RecentValues::largest() const {
  return count() == 0 ? 0
                      : *std::max_element(values_.begin(),
                                          values_.begin() + static_cast<std::ptrdiff_t>(count()));
}

const char* to_string(Jump jump) {
  switch (jump) {
    case Jump::not_finite: return "not_finite";
    case Jump::loss: return "loss";
    case Jump::parameters: return "parameters";
    case Jump::statistics: return "statistics";
  }
  return "";
}

bool StepGuard::is_far(const Movement& movement, double pace, const RecentValues& past) const {
  const double moved = std::sqrt(movement.moved_squared),
               before = std::sqrt(movement.before_squared);
  if (before > 0 && moved > growth_max * before) return true;
  if (movement.after_squared < movement.before_squared) return false;
  return past.count() >= looks_min && pace > step_jump_ * allowance_ * past.median() &&
         moved > share_min * before && moved > push_share * pushed_;
}

std::optional<Jump> StepGuard::jump_of(const OwnMove& move) const {
  if (!std::isfinite(move.parameters.moved_squared) ||
      !std::isfinite(move.statistics.moved_squared))
    return Jump::not_finite;
  if (worst_losses_.count() >= looks_min &&
      move.loss_worst > loss_jump * allowance_ * worst_losses_.largest() &&
      move.loss_worst > highest_loss_)
    return Jump::loss;
  if (move.steps == 0)  // at rest nothing moves
    return std::sqrt(move.parameters.moved_squared) >
                   share_min * std::sqrt(move.parameters.before_squared)
               ? std::optional(Jump::parameters)
               : std::nullopt;
  const double rate = move.learning_rate > 0 ? move.learning_rate : 1;
  if (is_far(move.parameters, per_step(move.parameters, move.steps) / rate, parameter_pace_))
    return Jump::parameters;
  if (is_far(move.statistics, per_step(move.statistics, move.steps), statistic_pace_))
    return Jump::statistics;
  return std::nullopt;
}

std::optional<Jump> StepGuard::judge(const OwnMove& move) {
  if (move.steps > 0) ++looks_;
  std::optional<Jump> jump = jump_of(move);
  if (jump && in_a_row_ >= give_in_after) {
    const std::uint32_t in_a_row = in_a_row_;
    forget();
    jump = jump_of(move);
    in_a_row_ = in_a_row;
  }
  if (jump) {
    ++in_a_row_, ++jumps_;
    allowance_ = std::min(allowance_ * allowance_growth, allowance_max);
    return jump;
  }
  if (move.steps == 0) return std::nullopt;
  in_a_row_ = 0;
  ++believed_;
  allowance_ = std::max(1.0, allowance_ * allowance_decay);
  pushed_ *= push_memory;
  // Who stands still has no pace that could be exceeded.
  if (move.learning_rate > 0 && move.parameters.moved_squared > 0)
    parameter_pace_.add(per_step(move.parameters, move.steps) / move.learning_rate);
  if (move.statistics.moved_squared > 0) statistic_pace_.add(per_step(move.statistics, move.steps));
  if (move.loss_worst > 0) worst_losses_.add(move.loss_worst);
  highest_loss_ = std::max(highest_loss_, move.loss);
  return std::nullopt;
}

void StepGuard::pushed(double norm) { pushed_ = std::max(pushed_, norm); }

void StepGuard::forget() {
  parameter_pace_.clear(), statistic_pace_.clear(), worst_losses_.clear();
  highest_loss_ = pushed_ = 0;
  allowance_ = 1;
  in_a_row_ = 0;
  believed_ = 0;
}

}  // namespace gossipd
