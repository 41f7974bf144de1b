#include "core/node/own_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "core/codec/kernels.h"

namespace gossipd {

void OwnSteps::begin(bool with_drift) {
  move_ = {};
  moved_.resize(schema_.blocks().size());
  if (!policy_.enabled) return;
  if (with_drift && drift_.size() != schema_.floats()) drift_.assign(schema_.floats(), 0.0f);
  travelled_.resize(schema_.blocks().size());
}

OwnSteps::Norms OwnSteps::norms_of(std::span<const float> now, std::span<const float> before) {
  const MovementNorms norms = kernels().movement(now, before);
  return {.moved_squared = norms.moved_squared,
          .before_squared = norms.before_squared,
          .after_squared = norms.now_squared};
}

void OwnSteps::add(std::size_t index, const Norms& norms) {
  const Block& block = schema_.blocks()[index];
  Movement& movement = block.kind == SegmentKind::parameter ? move_.parameters : move_.statistics;
  movement.moved_squared += norms.moved_squared;
  movement.before_squared += norms.before_squared;
  movement.after_squared += norms.after_squared;
  moved_[index] = std::sqrt(norms.moved_squared);
}

OwnSteps::Verdict OwnSteps::judge(const Snapshot& snapshot, Step steps) {
  move_.steps = steps;
  move_.learning_rate = snapshot.learning_rate;
  move_.loss = snapshot.loss;
  move_.loss_worst = snapshot.loss_worst;
  const std::optional<Jump> jump = guards() ? guard_.judge(move_) : std::nullopt;
  if (!jump) {
    remember_pace(snapshot);
    return Verdict::believed;
  }
  if (*jump == Jump::not_finite && guard_.jumps_in_a_row() > tries_max) return Verdict::broken;
  last_jump_ = *jump;
  return Verdict::take_back;
}

OwnSteps::Verdict OwnSteps::judge_not_finite(std::optional<std::span<const float>> before) {
  if (!guards() || !before) return Verdict::broken;
  move_ = {};
  move_.parameters.moved_squared = std::numeric_limits<double>::infinity();
  (void)guard_.judge(move_);
  if (guard_.jumps_in_a_row() > tries_max || !kernels().all_finite(*before)) return Verdict::broken;
  last_jump_ = Jump::not_finite;
  return Verdict::take_back;
}

void OwnSteps::add(std::size_t index, std::span<const float> now, std::span<const float> before,
                   Step steps) {
  if (!travelled_.empty() && std::isfinite(moved_[index])) travelled_[index] += moved_[index];
  if (drift_.empty()) return;
  const auto drift = schema_.blocks()[index].of(std::span<float>(drift_));
  if (comes_back()) {
    std::ranges::fill(drift, 0.0f);
    return;
  }
  const auto count = static_cast<double>(steps);
  const double blend = 1.0 - std::exp(-count / policy_.correction.drift_window_steps);
  kernels().drift(drift, now, before, static_cast<float>(1.0 / count), static_cast<float>(blend));
}

std::string OwnSteps::trouble(double learning_rate) const {
  if (!guard_.jumps_mostly()) return {};
  std::ostringstream words;
  words << guard_.jumps()
        << " looks at own steps were taken back, most since the start: the learning rate ("
        << learning_rate
        << ") is probably too high; found a new cluster, in another state directory, whose job has "
           "a lower optimizer.learning_rate";
  return words.str();
}

// At a rate of 0 a model stands still, which says nothing, unless no rate is told at all.
void OwnSteps::remember_pace(const Snapshot& snapshot) {
  const double moved = std::sqrt(move_.parameters.moved_squared);
  const bool told = snapshot.learning_rate_peak > 0;
  if (move_.steps == 0 || !(moved > 0) || !std::isfinite(moved)) return;
  if (told && snapshot.learning_rate <= 0) return;
  const double rate = told ? snapshot.learning_rate : 1;
  paces_.add(moved / static_cast<double>(move_.steps) / rate);
}

double OwnSteps::usual_step(double learning_rate) const {
  double parameters = 0;
  for (const Segment& segment : schema_.segments())
    if (segment.kind == SegmentKind::parameter) parameters += static_cast<double>(segment.size);
  const double rate = learning_rate > 0 ? learning_rate : 1;
  return parameters > 0 ? paces_.median() * rate / std::sqrt(parameters) : 0;
}

void OwnSteps::forget() {
  guard_.forget();
  paces_.clear();
  std::ranges::fill(drift_, 0.0f);
}

}  // namespace gossipd
