// core/balance/batch_balancer.h - the minibatch of a node from its speed, so that all steps take
// about equally long.
//
// DBS-SGD (Ji et al., 2019): b_i = B·s_i / Σ s_j, with s in samples per second and B the samples
// that the cluster takes per step. T = B / Σ s_j is then everybody's step time. A step has a part
// that does not shrink with the batch, so each node fits its own t(b) = a + c·b on line and takes
// the batch for which its step takes T: b = (T − a)/c (which is T·s_i when a = 0). Here B is the
// job's batch × the members that train.
//
// The fit is least squares with exponential forgetting (`balance_forgetting` per observation);
// until batches have differed enough, a = 0. It is scaled so that it goes through the newest
// observation, so a change of speed is followed at once. Seconds, samples. Pure; core strand.
#pragma once

#include "core/base/types.h"

namespace gossipd {

inline constexpr double balance_forgetting = 0.9;
inline constexpr double balance_dead_band = 0.1;  // a change of the batch by less is not made
// relative standard deviation of the batches that a fit of `a` needs
inline constexpr double balance_batch_variation = 0.05;

enum class BalanceWeight : std::uint8_t {
  none,
  batch,  // a node's weight in mixing is proportional to its batch
  rate,   // its learning rate is; never both
};

struct BalancePolicy {
  bool enabled = false;
  std::uint32_t batch_min = 8;
  std::uint32_t batch_max = 1024;
  BalanceWeight weight = BalanceWeight::batch;
};

struct StepTime {
  double fixed_s = 0;       // a
  double per_sample_s = 0;  // c
  [[nodiscard]] double of(double batch) const { return fixed_s + per_sample_s * batch; }
};

class BatchBalancer {
 public:
  explicit BatchBalancer(const BalancePolicy& policy) : policy_(policy) {}  // which must outlive it

  // A step of `batch` samples took `seconds`, smoothed over some steps of this batch.
  void observe(std::uint32_t batch, double seconds);
  [[nodiscard]] bool observed() const { return batch_ > 0; }
  [[nodiscard]] StepTime step_time() const;
  // Samples per second with the batch of the last observation.
  [[nodiscard]] double samples_per_second() const { return seconds_ > 0 ? batch_ / seconds_ : 0; }

  // The batch to take from now on. `cluster_batch` is B, `others_samples_per_second` Σ s_j without
  // this node; `current` is kept when nothing has been observed, or when the change would be within
  // the dead band.
  [[nodiscard]] std::uint32_t batch(std::uint32_t current, double cluster_batch,
                                    double others_samples_per_second) const;

 private:
  const BalancePolicy& policy_;
  double weight_ = 0, b_ = 0, t_ = 0, bb_ = 0, bt_ = 0;  // sums, forgetting
  double batch_ = 0, seconds_ = 0;                       // the newest
};

}  // namespace gossipd
