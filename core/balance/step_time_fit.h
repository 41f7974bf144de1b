// core/balance/step_time_fit.h - how long a step of a node takes, as a function of its minibatch.
//
// The problem: a step has a part that does not shrink with the batch, a machine's speed changes,
// and mostly only one batch has been seen.
//
// The answer: t(b) = a + c·b, fitted on line by least squares with exponential forgetting
// (`balance_forgetting` per observation). Until batches have differed enough, a = 0. The line is
// scaled so that it goes through the newest observation, so a change of speed is followed at once.
// Seconds, samples. Pure; core strand.
#pragma once

#include "core/base/types.h"

namespace gossipd {

inline constexpr double balance_forgetting = 0.9;
// relative standard deviation of the batches that a fit of `a` needs
inline constexpr double balance_batch_variation = 0.05;

struct StepTime {
  double fixed_s = 0;       // a
  double per_sample_s = 0;  // c
  [[nodiscard]] double of(double batch) const { return fixed_s + per_sample_s * batch; }
};

class StepTimeFit {
 public:
  // A step of `batch` samples took `seconds`, smoothed over some steps of this batch. What no
  // machine can have taken is left out.
  void observe(std::uint32_t batch, double seconds);
  [[nodiscard]] bool observed() const { return batch_ > 0; }
  [[nodiscard]] StepTime step_time() const;  // zeros before the first observation
  // Samples per second with the batch of the last observation.
  [[nodiscard]] double samples_per_second() const { return seconds_ > 0 ? batch_ / seconds_ : 0; }

 private:
  // Sums over all observations, each weighted by balance_forgetting to the power of its age.
  double weight_ = 0, b_ = 0, t_ = 0, bb_ = 0, bt_ = 0;
  double batch_ = 0, seconds_ = 0;  // the newest observation; 0: none yet
};

}  // namespace gossipd
