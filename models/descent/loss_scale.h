// models/descent/loss_scale.h - the factor on the loss that keeps fp16 gradients from vanishing.
//
// As large as the gradients allow: halved by every step whose gradient overflows (which is then not
// taken), doubled after 2,000 in a row that do not. Powers of two, so that scaling up and down
// loses no bit. A part of the optimiser's state: where the scale stands decides which steps are
// taken. Plain C++; one owner.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

namespace gossipd {

class LossScale {
 public:
  // As a checkpoint tells it; nothing where no scale can stand.
  [[nodiscard]] static std::optional<LossScale> at(double value, int good_steps) {
    int exponent = 0;
    const bool power_of_two = std::frexp(value, &exponent) == 0.5;
    if (!power_of_two || value < scale_min || value > scale_max || good_steps < 0 ||
        good_steps >= steps_until_growth)
      return std::nullopt;
    LossScale scale;
    scale.value_ = value;
    scale.good_steps_ = good_steps;
    return scale;
  }

  [[nodiscard]] double value() const { return value_; }
  // in a row, since the scale last moved
  [[nodiscard]] int good_steps() const { return good_steps_; }
  // Of a step's gradient.
  void saw(bool finite) {
    if (!finite) {
      value_ = std::max(value_ / 2, scale_min);
      good_steps_ = 0;
    } else if (++good_steps_ == steps_until_growth) {
      value_ = std::min(value_ * 2, scale_max);
      good_steps_ = 0;
    }
  }
  bool operator==(const LossScale&) const = default;

  static constexpr int steps_until_growth = 2000;

 private:
  static constexpr double scale_min = 1;
  static constexpr double scale_max = 16777216;
  double value_ = 65536;
  int good_steps_ = 0;
};

}  // namespace gossipd
