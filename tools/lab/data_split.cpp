#include "tools/lab/data_split.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/random.h"
#include "core/base/result.h"

namespace gossipd {

namespace {

double normal(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * random.uniform());
}

// Marsaglia and Tsang 2000; below shape 1 by the usual power of a uniform.
double gamma_variate(Random& random, double shape) {
  if (shape < 1.0)
    return gamma_variate(random, shape + 1.0) * std::pow(1.0 - random.uniform(), 1.0 / shape);
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal(random), v = std::pow(1.0 + c * x, 3.0);
    if (v > 0 && std::log(1.0 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v;
  }
}

void shuffle(std::vector<std::uint32_t>& values, Random& random) {
  for (std::size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[random.below(left)]);
}

}  // namespace

std::vector<std::vector<std::uint32_t>> split_by_dirichlet(std::span<const std::uint8_t> labels,
                                                           std::size_t nodes, double alpha,
                                                           bool equal_sizes, std::uint64_t seed) {
  GOSSIPD_ASSERT(nodes > 0 && labels.size() >= nodes && alpha > 0);
  Random random(seed ^ 0x64697269636c6574ull);
  std::vector<std::vector<std::uint32_t>> by_class(256), shards(nodes);
  for (std::size_t i = 0; i < labels.size(); ++i)
    by_class[labels[i]].push_back(static_cast<std::uint32_t>(i));
  for (auto& members : by_class) {
    if (members.empty()) continue;
    shuffle(members, random);
    std::vector<double> share(nodes);
    double sum = 0;
    for (double& s : share) sum += s = std::max(gamma_variate(random, alpha), 1e-300);
    double until = 0;
    std::size_t at = 0;
    for (std::size_t n = 0; n < nodes; ++n) {
      until += share[n] / sum;
      const auto end =
          n + 1 == nodes
              ? members.size()
              : std::min(members.size(), static_cast<std::size_t>(
                                             until * static_cast<double>(members.size()) + 0.5));
      for (; at < end; ++at) shards[n].push_back(members[at]);
    }
  }
  for (auto& shard : shards) shuffle(shard, random);
  const auto less = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  while (true) {
    const auto small = std::min_element(shards.begin(), shards.end(), less),
               large = std::max_element(shards.begin(), shards.end(), less);
    const bool even = equal_sizes ? large->size() - small->size() <= 1 : !small->empty();
    if (even) break;
    small->push_back(large->back());
    large->pop_back();
  }
  return shards;
}

}  // namespace gossipd
