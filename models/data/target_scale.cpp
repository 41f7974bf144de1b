#include "models/data/target_scale.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/figures.h"

namespace gossipd {

namespace {

constexpr std::size_t samples_least = 512;
constexpr std::size_t values_most = std::size_t{1} << 22;  // of inputs and targets, beyond those
constexpr double magnitude_most = 30;                      // of the mean, and of the deviation
constexpr double deviation_least = 0.01;
// Of so many deviations the mean may be, and dividing alone helps.
constexpr double deviations_away = 3;
// A deviation below this part of the mean is what rounding makes of one and the same value.
constexpr double constant_part = 1e-6;

struct Scale {
  double mean = 0, deviation = 0;
};

Scale scale_of(const DataSet& set) {
  const std::size_t values = set.input().values(), targets = set.target().values();
  std::vector<float> input(values), target(targets);
  std::vector<std::int64_t> tokens(values);
  Batch batch{.inputs = std::span<float>(input), .targets = std::span<float>(target)};
  if (set.input().element == SampleShape::Element::int64)
    batch.inputs = std::span<std::int64_t>(tokens);
  const std::size_t looked =
      std::min(set.count(), std::max(samples_least, values_most / (values + targets)));
  double mean = 0, squares = 0, count = 0;  // Welford's, which keeps small differences
  for (std::size_t i = 0; i < looked; ++i) {
    set.write(i * set.count() / looked, nullptr, batch, 0);
    for (const float value : target) {
      const double off = static_cast<double>(value) - mean;
      mean += off / ++count;
      squares += off * (static_cast<double>(value) - mean);
    }
  }
  return {mean, std::sqrt(squares / std::max(1.0, count))};
}

// With one digit, which is as good and easier to write.
double plain(double value) {
  const double unit = std::pow(10.0, std::floor(std::log10(value)));
  return std::round(value / unit) * unit;
}

}  // namespace

std::optional<std::string> note_on_targets(const DataSet& set) {
  if (set.classes() > 0 || set.count() == 0) return std::nullopt;
  const auto [mean, deviation] = scale_of(set);
  if (deviation <= std::abs(mean) * constant_part)
    return "targets are all " + six_digits(mean) +
           ", or nearly, so there is nothing to learn; look at how they were written";
  if (std::abs(mean) <= magnitude_most && deviation <= magnitude_most &&
      deviation >= deviation_least)
    return std::nullopt;
  const bool far = std::abs(mean) > deviations_away * deviation;
  const bool wide = !far || deviation > 10 || deviation < 0.1;
  const std::string way = (far ? "subtract " + six_digits(mean) + " from them" : "") +
                          (far && wide ? " and " : "") +
                          (wide ? "divide them by " + six_digits(plain(deviation)) : "");
  return "targets have a mean of " + six_digits(mean) + " and a deviation of " +
         six_digits(deviation) +
         ", and a model begins near 0 and learns best about 1, so that it may learn nothing: " +
         way + " before training, in all files alike; predictions are in those units then";
}

}  // namespace gossipd
