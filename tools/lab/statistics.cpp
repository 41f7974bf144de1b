#include "tools/lab/statistics.h"

#include <algorithm>
#include <cmath>

namespace gossipd::lab {

double student_t_975(std::size_t degrees) {
  static constexpr double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                     2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                     2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                     2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees == 0) return INFINITY;
  if (degrees <= std::size(table)) return table[degrees - 1];
  // Cornish and Fisher's expansion around the normal quantile.
  const double z = 1.959964, n = static_cast<double>(degrees);
  return z + (z * z * z + z) / (4 * n) +
         (5 * std::pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * n * n);
}

Summary summarise(std::span<const double> values) {
  Summary s;
  s.count = values.size();
  if (values.empty()) return s;
  const double n = static_cast<double>(values.size());
  for (const double v : values) s.mean += v / n;
  if (values.size() < 2) return s;
  double squares = 0;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  s.deviation = std::sqrt(squares / (n - 1));
  s.bound95 = student_t_975(values.size() - 1) * s.deviation / std::sqrt(n);
  return s;
}

}  // namespace gossipd::lab
