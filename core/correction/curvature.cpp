#include "core/correction/curvature.h"

#include <cmath>

namespace gossipd {

double damped_displacement(double n_times_u, double k) {
  const double z = k * std::abs(n_times_u);
  return z < 1e-9 ? n_times_u : n_times_u * (-std::expm1(-z)) / z;
}

double adapt_mean_square(double before, double now) {
  return before <= 0 ? now : curvature_decay * before + (1 - curvature_decay) * now;
}

double add_damped(std::span<float> update, std::span<const float> drift,
                  const FuturePosition& position, double k) {
  double squared = 0;
  for (std::size_t i = 0; i < update.size(); ++i) {
    const double added =
        position.gain * damped_displacement(position.steps * static_cast<double>(drift[i]), k);
    update[i] += static_cast<float>(added);
    squared += added * added;
  }
  return squared;
}

}  // namespace gossipd
