#include "core/balance/batch_balancer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gossipd {

BatchBounds batch_bounds(const BalancePolicy& policy, std::uint32_t job_batch) {
  const std::uint32_t usual_most = std::min<std::uint64_t>(
      std::uint64_t{balance_share_max} * job_batch, std::numeric_limits<std::uint32_t>::max());
  const std::uint32_t most = std::max(1u, policy.batch_max > 0 ? policy.batch_max : usual_most);
  const std::uint32_t least =
      policy.batch_min > 0 ? policy.batch_min : std::min(balance_batch_min, job_batch);
  return {.least = std::clamp(least, 1u, most), .most = most};
}

std::uint32_t balanced_batch(BatchBounds bounds, const StepTimeFit& fit, std::uint32_t current,
                             double cluster_batch, double others_samples_per_second) {
  if (!fit.observed() || cluster_batch <= 0) return current;
  const double everybodys_s =
      cluster_batch / (fit.samples_per_second() + std::max(0.0, others_samples_per_second));
  const StepTime time = fit.step_time();
  const double exact = (everybodys_s - time.fixed_s) / time.per_sample_s;
  const double wanted = std::clamp(std::round(exact), static_cast<double>(bounds.least),
                                   static_cast<double>(bounds.most));
  if (current >= bounds.least && current <= bounds.most &&
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
  wanted_ = balanced_batch(batch_bounds(policy_, pace.job_batch), fit_, pace.batch,
                           static_cast<double>(pace.job_batch) * (others.members + 1),
                           others.samples_per_second);
  return wanted_ != pace.batch;
}

double BatchBalancer::share_max(std::uint32_t job_batch) const {
  const double usual = balance_share_max;
  return job_batch > 0 ? std::max(usual, static_cast<double>(policy_.batch_max) / job_batch)
                       : usual;
}

}  // namespace gossipd
