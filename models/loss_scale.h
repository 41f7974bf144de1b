// models/loss_scale.h - the factor on the loss that keeps fp16 gradients from vanishing.
//
// As large as the gradients allow: halved by every step whose gradient overflows (which is then not taken), doubled after 2,000
// in a row that do not. Powers of two, so that scaling up and down loses no bit. Plain C++; one owner.
#pragma once

#include <algorithm>

namespace gossipd {

class LossScale {
 public:
  [[nodiscard]] double value() const { return value_; }
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

  static constexpr int steps_until_growth = 2000;

 private:
  static constexpr double scale_min = 1;
  static constexpr double scale_max = 16777216;
  double value_ = 65536;
  int good_steps_ = 0;
};

}  // namespace gossipd
