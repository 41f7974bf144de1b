#include "core/correction/correction.h"

#include <algorithm>
#include <cmath>

#include "core/base/mean_square.h"
#include "core/codec/kernels.h"

namespace gossipd {

Correction::Correction(const CorrectionPolicy& policy)
    : policy_(policy), forecaster_(make_forecaster(policy.loss_trust)) {}

void Correction::observe(Step peer_step, double loss) {
  if (forecaster_) forecaster_->observe(peer_step, loss);
}

double Correction::peer_loss(double peer_steps_since) const {
  return forecaster_ ? forecaster_->forecast(peer_steps_since) : 0;
}

FuturePosition Correction::position(double gain, double received_age, double own_age) const {
  const double window = policy_.drift_window_steps;
  return future_position(policy_.future_position, gain,
                         std::clamp(received_age, own_age - window, own_age + window), own_age);
}

double Correction::add_to(std::span<float> update, std::size_t block,
                          const FuturePosition& position, std::span<const float> model,
                          std::span<const float> drift) {
  if (position.gain * position.steps == 0) return 0;
  if (policy_.curvature <= 0)
    return kernels().axpy(update, drift, static_cast<float>(position.gain * position.steps));
  double scale_squared = 0;
  if (policy_.curvature_mode == CurvatureMode::adaptive) {
    if (block >= drift_squares_.size()) drift_squares_.resize(block + 1);
    scale_squared = drift_squares_[block] =
        adapt_mean_square(drift_squares_[block], mean_square(drift));
  } else {
    scale_squared = mean_square(model);
  }
  return add_damped(update, drift, position,
                    policy_.curvature / std::sqrt(scale_squared + curvature_epsilon));
}

}  // namespace gossipd
