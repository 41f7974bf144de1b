#include "tools/lab/references/batch_sizing.h"

#include <algorithm>
#include <cmath>

namespace gossipd::lab {

void StepTimeFit::observe(double batch, double seconds) {
  constexpr double keep = 0.9;
  for (double* sum : {&weight_, &b_, &t_, &bb_, &bt_}) *sum *= keep;
  weight_ += 1;
  b_ += batch;
  t_ += seconds;
  bb_ += batch * batch;
  bt_ += batch * seconds;
  const double mean_b = b_ / weight_, mean_t = t_ / weight_;
  const double variance = bb_ / weight_ - mean_b * mean_b,
               together = bt_ / weight_ - mean_b * mean_t;
  if (variance > 0.0025 * mean_b * mean_b)
    base_ = std::clamp(mean_t - together / variance * mean_b, 0.0, 0.9 * mean_t);
  base_ = std::min(base_, 0.9 * mean_t);
  per_sample_ = (mean_t - base_) / mean_b;
}

std::vector<std::uint32_t> balanced_batches(const std::vector<StepTimeFit>& fits,
                                            std::uint64_t total, std::uint32_t least,
                                            std::uint32_t most) {
  const auto batch_in = [&](const StepTimeFit& fit, double time) {
    return std::clamp((time - fit.base_s()) / fit.per_sample_s(), static_cast<double>(least),
                      static_cast<double>(most));
  };
  const auto sum_in = [&](double time) {
    double sum = 0;
    for (const StepTimeFit& fit : fits) sum += batch_in(fit, time);
    return sum;
  };
  double low = 0, high = 1e-6;
  while (sum_in(high) < static_cast<double>(total) && high < 1e6) high *= 2;
  for (int k = 0; k < 60; ++k) {
    const double middle = 0.5 * (low + high);
    (sum_in(middle) < static_cast<double>(total) ? low : high) = middle;
  }
  std::vector<std::uint32_t> batches;
  double exact = 0, given = 0;  // running sums, so that rounding errors do not accumulate
  for (const StepTimeFit& fit : fits) {
    exact += batch_in(fit, high);
    const double batch = std::clamp(std::round(exact - given), static_cast<double>(least),
                                    static_cast<double>(most));
    given += batch;
    batches.push_back(static_cast<std::uint32_t>(batch));
  }
  return batches;
}

}  // namespace gossipd::lab
