// Replicas in bf16 against what fp32 and the rule for adjacent values give, on every instruction
// set.
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/random.h"
#include "tests/unit/core_kernels_support.h"

using namespace gossipd;

namespace {

using Narrow = std::vector<std::uint16_t>;

float wide(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

std::uint16_t nearest(float x) {  // by the definition: of the two beside x the nearer, or the even
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto towards_zero = static_cast<std::uint16_t>(bits >> 16);
  const std::uint32_t rest = bits & 0xffffu;
  const bool away = rest > 0x8000u || (rest == 0x8000u && (towards_zero & 1) != 0);
  return static_cast<std::uint16_t>(towards_zero + (away ? 1 : 0));
}

// Equal, or no bf16 lies between them.
bool are_adjacent(std::uint16_t a, std::uint16_t b) {
  const float low = std::min(wide(a), wide(b)), high = std::max(wide(a), wide(b));
  if (low == high) return true;
  std::uint16_t next = 0x0001;  // above zero
  if (low > 0) next = static_cast<std::uint16_t>(nearest(low) + 1);
  if (low < 0) next = static_cast<std::uint16_t>(nearest(low) - 1);
  return wide(next) == high;
}

// Each second one is within a few places of `near`.
Narrow values(std::uint64_t seed, std::size_t size, const Narrow& near = {}) {
  Random random(seed);
  Narrow result(size);
  for (std::size_t i = 0; i < size; ++i) {
    const double x = std::ldexp(random.uniform() - 0.5, static_cast<int>(random.below(24)) - 12);
    result[i] = nearest(static_cast<float>(x));
    if (!near.empty() && random.below(2) == 0)
      result[i] = static_cast<std::uint16_t>(near[i] + random.below(5) - 2);
  }
  return result;
}

std::vector<float> floats(std::uint64_t seed, std::size_t size) {
  Random random(seed);
  std::vector<float> result(size);
  for (float& x : result) x = static_cast<float>(random.uniform() - 0.5);
  return result;
}

}  // namespace

TEST_CASE("values are adjacent where no bf16 lies between them, across zero as well") {
  const Narrow x = {0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x0000, 0x8001, 0x8001, 0xbf80};
  const Narrow y = {0x3f80, 0x3f81, 0x3f7f, 0x3f82, 0x8000, 0x0000, 0x0001, 0x3f80};
  const std::vector<bool> expected = {true, true, true, false, true, true, false, false};
  for (const Kernels* version : kernel_versions())
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(i);
      CHECK(are_adjacent(x[i], y[i]) == expected[i]);
      // in lanes and at the end
      for (const std::size_t size : {std::size_t{1}, std::size_t{16}}) {
        const double apart =
            version->narrow_distance(Narrow(size, x[i]), Narrow(size, y[i])).change_squared;
        CHECK((apart == 0) == expected[i]);
      }
    }
}

TEST_CASE("distance, transfer and contraction of replicas in bf16 leave adjacent values alone") {
  everywhere([](const Kernels& k, std::size_t size) {
    const Narrow a = values(1, size), b = values(2, size, a);
    std::vector<float> update = floats(3, size), expected = update;
    Narrow x = a, y = b;
    double apart = 0, reference = 0, moved = 0;
    k.narrow_contract(x, y, 0.25f, 0.4f);
    for (std::size_t i = 0; i < size; ++i) {
      const bool stays = are_adjacent(a[i], b[i]);
      const float difference = stays ? 0 : wide(a[i]) - wide(b[i]);
      const float step = 0.3f * difference;
      apart += double(difference) * double(difference);
      reference += double(wide(b[i])) * double(wide(b[i]));
      moved += double(step) * double(step);
      expected[i] += step;
      const float towards_b = 0.25f * (wide(b[i]) - wide(a[i]));
      const float towards_a = 0.4f * (wide(a[i]) - wide(b[i]));
      REQUIRE(x[i] == (stays ? a[i] : nearest(wide(a[i]) + towards_b)));
      REQUIRE(y[i] == (stays ? b[i] : nearest(wide(b[i]) + towards_a)));
    }
    const ChangeNorms norms = k.narrow_distance(a, b);
    CHECK(close(norms.change_squared, apart));
    CHECK(close(norms.reference_squared, reference));
    CHECK(close(k.narrow_transfer(update, a, b, 0.3f), moved));
    CHECK(update == expected);
  });
}

TEST_CASE("the change against a replica in bf16 is that of the rounded sum") {
  everywhere([](const Kernels& k, std::size_t size) {
    const std::vector<float> model = floats(4, size), update = floats(5, size);
    const Narrow replica = values(6, size);
    std::vector<float> sum(size);
    double change = 0, reference = 0;
    for (std::size_t i = 0; i < size; ++i) {
      sum[i] = model[i] + update[i];
      const double difference = double(wide(nearest(sum[i])) - wide(replica[i]));
      change += difference * difference;
      reference += double(wide(replica[i])) * double(wide(replica[i]));
    }
    const ChangeNorms norms = k.narrow_change(model, update, replica);
    CHECK(close(norms.change_squared, change));
    CHECK(close(norms.reference_squared, reference));
    std::vector<float> rounded = sum;
    k.round(rounded);
    for (std::size_t i = 0; i < size; ++i) REQUIRE(rounded[i] == wide(nearest(sum[i])));
  });
}

TEST_CASE("rounding to bf16 keeps what is not finite, and the change shows it") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const float all_bits_set = std::bit_cast<float>(0x7fffffffu);  // would round to −0
  for (const Kernels* version : kernel_versions())
    for (const float bad : {infinity, -infinity, nan, all_bits_set})
      for (const std::size_t at : {std::size_t{0}, std::size_t{16}}) {
        std::vector<float> x(17, 1.0f);
        x[at] = bad;
        const Narrow replica(17, 0x3f80);
        const ChangeNorms norms = version->narrow_change(x, std::vector<float>(17), replica);
        CHECK_FALSE(std::isfinite(norms.change_squared));
        version->round(x);
        CHECK(std::bit_cast<std::uint32_t>(x[at]) == std::bit_cast<std::uint32_t>(bad));
      }
}
