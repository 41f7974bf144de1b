// core/base/figures.h - numbers as people read them. Pure; any thread.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace gossipd {

// With so many digits behind the point; six digits and an exponent from 1e15 on.
[[nodiscard]] inline std::string decimals(double number, int digits) {
  char text[64];  // %.*f writes up to 309 digits before the point
  if (std::abs(number) < 1e15)
    std::snprintf(text, sizeof text, "%.*f", digits, number);
  else
    std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// With six digits in all, whatever its size.
[[nodiscard]] inline std::string six_digits(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", number);
  return text;
}

}  // namespace gossipd
