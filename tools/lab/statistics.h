// tools/lab/statistics.h - means, standard deviations, and paired differences with a 95 % bound.
#pragma once

#include <span>

namespace gossipd::lab {

struct Summary {
  std::size_t count = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation of the sample; 0 for one value
  // half width of the 95 % confidence interval of the mean (Student's t); 0 for one value
  double bound95 = 0;
};
[[nodiscard]] Summary summarise(std::span<const double> values);

// Two-sided 97.5 % quantile of Student's t with `degrees` of freedom.
[[nodiscard]] double student_t_975(std::size_t degrees);

}  // namespace gossipd::lab
