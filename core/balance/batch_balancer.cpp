#include "core/balance/batch_balancer.h"

#include <algorithm>
#include <cmath>

namespace gossipd {

std::uint32_t balanced_batch(const BalancePolicy& policy, const StepTimeFit& fit,
                             std::uint32_t current, double cluster_batch,
                             double others_samples_per_second) {
  const std::uint32_t least = std::max<std::uint32_t>(1, policy.batch_min);
  const std::uint32_t most = std::max(least, policy.batch_max);
  if (!fit.observed() || cluster_batch <= 0) return current;
  const double everybodys_s =
      cluster_batch / (fit.samples_per_second() + std::max(0.0, others_samples_per_second));
  const StepTime time = fit.step_time();
  const double exact = (everybodys_s - time.fixed_s) / time.per_sample_s;
  const double wanted =
      std::clamp(std::round(exact), static_cast<double>(least), static_cast<double>(most));
  if (current >= least && current <= most &&
      std::abs(wanted - current) <= balance_dead_band * current)
    return current;
  return static_cast<std::uint32_t>(wanted);
}

bool BatchBalancer::on_snapshot(const Pace& pace, const Others& others) {
  if (!policy_.enabled || pace.batch == 0) return false;
  if (pace.step > steady_since_) fit_.observe(pace.batch, pace.step_seconds);
  // A step that goes back is another model's.
  if (pace.batch != steady_batch_ || pace.step < steady_since_) {
    steady_batch_ = pace.batch;
    steady_since_ = pace.step;
  }
  if (pace.step - steady_since_ < balance_steps) return false;
  wanted_ = balanced_batch(policy_, fit_, pace.batch,
                           static_cast<double>(pace.job_batch) * (others.members + 1),
                           others.samples_per_second);
  return wanted_ != pace.batch;
}

double BatchBalancer::share_max(std::uint32_t job_batch) const {
  return std::max(1.0, job_batch > 0 ? static_cast<double>(policy_.batch_max) / job_batch : 1.0);
}

}  // namespace gossipd
