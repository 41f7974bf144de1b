#include "core/balance/batch_balancer.h"

#include <algorithm>
#include <cmath>

namespace gossipd {

void BatchBalancer::observe(std::uint32_t batch, double seconds) {
  if (batch == 0 || !std::isfinite(seconds) || seconds <= 0) return;
  batch_ = static_cast<double>(batch);
  seconds_ = seconds;
  weight_ = balance_forgetting * weight_ + 1;
  b_ = balance_forgetting * b_ + batch_;
  t_ = balance_forgetting * t_ + seconds;
  bb_ = balance_forgetting * bb_ + batch_ * batch_;
  bt_ = balance_forgetting * bt_ + batch_ * seconds;
}

StepTime BatchBalancer::step_time() const {
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

std::uint32_t BatchBalancer::batch(std::uint32_t current, double cluster_batch,
                                   double others_samples_per_second) const {
  const std::uint32_t least = std::max<std::uint32_t>(1, policy_.batch_min);
  const std::uint32_t most = std::max(least, policy_.batch_max);
  if (!observed() || cluster_batch <= 0) return current;
  const double everybodys_s =
      cluster_batch / (samples_per_second() + std::max(0.0, others_samples_per_second));
  const StepTime time = step_time();
  const double exact = (everybodys_s - time.fixed_s) / time.per_sample_s;
  const double wanted =
      std::clamp(std::round(exact), static_cast<double>(least), static_cast<double>(most));
  if (current >= least && current <= most &&
      std::abs(wanted - current) <= balance_dead_band * current)
    return current;
  return static_cast<std::uint32_t>(wanted);
}

}  // namespace gossipd
