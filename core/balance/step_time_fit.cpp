#include "core/balance/step_time_fit.h"

#include <cmath>

namespace gossipd {

void StepTimeFit::observe(std::uint32_t batch, double seconds) {
  if (batch == 0 || !std::isfinite(seconds) || seconds <= 0) return;
  batch_ = static_cast<double>(batch);
  seconds_ = seconds;
  weight_ = balance_forgetting * weight_ + 1;
  b_ = balance_forgetting * b_ + batch_;
  t_ = balance_forgetting * t_ + seconds;
  bb_ = balance_forgetting * bb_ + batch_ * batch_;
  bt_ = balance_forgetting * bt_ + batch_ * seconds;
}

StepTime StepTimeFit::step_time() const {
  if (!observed()) return {};
  const StepTime proportional{0, seconds_ / batch_};
  const double mean_b = b_ / weight_, mean_t = t_ / weight_;
  const double variance = bb_ / weight_ - mean_b * mean_b;
  if (variance <= std::pow(balance_batch_variation * mean_b, 2)) return proportional;
  const double c = (bt_ / weight_ - mean_b * mean_t) / variance;
  const double a = mean_t - c * mean_b;
  // More samples cannot take less time, and no samples no negative time: then speed changed, not
  // the batch.
  if (c <= 0 || a < 0) return proportional;
  const double scale = seconds_ / (a + c * batch_);
  return {a * scale, c * scale};
}

}  // namespace gossipd
