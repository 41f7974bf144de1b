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
  if (!guards()) return Verdict::believed;
  move_.steps = steps;
  move_.learning_rate = snapshot.learning_rate;
  move_.loss = snapshot.loss;
  move_.loss_worst = snapshot.loss_worst;
  const std::optional<Jump> jump = guard_.judge(move_);
  if (!jump) return Verdict::believed;
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
  if (!travelled_.empty()) travelled_[index] += moved_[index];
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

double OwnSteps::usual_step(double learning_rate) const {
  double parameters = 0;
  for (const Segment& segment : schema_.segments())
    if (segment.kind == SegmentKind::parameter) parameters += static_cast<double>(segment.size);
  return parameters > 0 ? guard_.usual_pace() * learning_rate / std::sqrt(parameters) : 0;
}

void OwnSteps::forget() {
  guard_.forget();
  std::ranges::fill(drift_, 0.0f);
}

}  // namespace gossipd
