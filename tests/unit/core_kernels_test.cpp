#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/random.h"
#include "tests/unit/core_kernels_support.h"

using namespace gossipd;

namespace {

std::vector<float> values(std::uint64_t seed, std::size_t size) {
  Random random(seed);
  std::vector<float> result(size);
  for (float& x : result) {
    x = std::ldexp(static_cast<float>(random.uniform() - 0.5),
                   static_cast<int>(random.below(24)) - 12);
  }
  return result;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

}  // namespace

TEST_CASE("the baseline is always there, first, and the process uses one of the versions") {
  REQUIRE_FALSE(kernel_versions().empty());
  CHECK(std::string(kernel_versions().front()->name) == "baseline");
  CHECK(kernel_versions().back() == &kernels());
}

TEST_CASE("transfer adds the gained difference and returns its squared norm") {
  everywhere([](const Kernels& k, std::size_t size) {
    std::vector<float> update = values(1, size), expected = update;
    const std::vector<float> received = values(2, size), published = values(3, size);
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const float difference = received[i] - published[i];
      const float step = 0.3f * difference;
      expected[i] = expected[i] + step;
      sum += double(step) * double(step);
    }
    CHECK(close(k.transfer(update, received, published, 0.3f), sum));
    CHECK(same_bits(update, expected));
  });
}

TEST_CASE("two vectors are drawn together by their gains, with the same bits from either end") {
  everywhere([](const Kernels& k, std::size_t size) {
    const std::vector<float> a = values(31, size), b = values(32, size);
    std::vector<float> x = a, y = b, u = b, v = a;
    k.contract_replicas(x, y, 0.3f, 0.7f);
    k.contract_replicas(u, v, 0.7f, 0.3f);
    CHECK(same_bits(x, v));
    CHECK(same_bits(y, u));
    for (std::size_t i = 0; i < size; ++i) {
      CHECK(x[i] == a[i] + 0.3f * (b[i] - a[i]));
      CHECK(y[i] == b[i] + 0.7f * (a[i] - b[i]));
    }
  });
}

TEST_CASE("bf16 is widened exactly, and narrowed to the nearest, ties to even") {
  everywhere([](const Kernels& k, std::size_t size) {
    const std::vector<float> x = values(33, size);
    std::vector<std::uint16_t> narrow(size, 1), again(size, 2);
    std::vector<float> wide(size, -1.0f);
    k.narrow(narrow, x);
    k.widen(wide, narrow);
    k.narrow(again, wide);
    CHECK(again == narrow);
    for (std::size_t i = 0; i < size; ++i)
      CHECK(std::abs(wide[i] - x[i]) <= std::ldexp(std::abs(x[i]), -8));
  });
  std::vector<std::uint16_t> out(4);
  // two ties, above one, below one
  kernels().narrow(out, std::vector<float>{0x1.01p0f, 0x1.03p0f, 0x1.0101p0f, -0x1.00ffp0f});
  CHECK(out == std::vector<std::uint16_t>{0x3f80, 0x3f82, 0x3f81, 0xbf80});
}

TEST_CASE("entries apart are those that differ by more than the bound, in both directions") {
  everywhere([](const Kernels& k, std::size_t size) {
    std::vector<float> a = values(34, size), b = a;
    std::size_t expected = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const float by = i % 3 == 0 ? 0.25f : i % 3 == 1 ? -0.25f : 0.125f;
      a[i] = std::round(a[i]), b[i] = a[i] + by;  // exact
      expected += i % 3 != 2 ? 1 : 0;
    }
    CHECK(k.count_apart(a, b, 0.125f) == expected);
    CHECK(k.count_apart(b, a, 0.25f) == 0);
    CHECK(k.count_apart(a, b, 0) == size);
    CHECK(k.count_apart(a, a, 0) == 0);
  });
}

TEST_CASE("sum is model plus update") {
  everywhere([](const Kernels& k, std::size_t size) {
    const std::vector<float> model = values(4, size), update = values(5, size);
    std::vector<float> target(size, -1.0f), expected(size);
    for (std::size_t i = 0; i < size; ++i) expected[i] = model[i] + update[i];
    k.sum(target, model, update);
    CHECK(same_bits(target, expected));
  });
}

TEST_CASE("drift is the moving average of displacement per step, rounded at each operation") {
  everywhere([](const Kernels& k, std::size_t size) {
    std::vector<float> drift = values(6, size), expected = drift;
    const std::vector<float> now = values(7, size), before = values(8, size);
    for (std::size_t i = 0; i < size; ++i) {
      const float displacement = now[i] - before[i];
      const float per_step = displacement * 0.25f;
      const float away = per_step - expected[i];
      const float blended = 0.05f * away;
      expected[i] = expected[i] + blended;
    }
    k.drift(drift, now, before, 0.25f, 0.05f);
    CHECK(same_bits(drift, expected));
  });
}

TEST_CASE("taking back is a share of the way back, rounded at each operation") {
  everywhere([](const Kernels& k, std::size_t size) {
    std::vector<float> before = values(7, size), expected = before;
    const std::vector<float> now = values(8, size);
    for (std::size_t i = 0; i < size; ++i) {
      const float back = expected[i] - now[i];
      expected[i] = 0.3f * back;
    }
    k.take_back(before, now, 0.3f);
    CHECK(same_bits(before, expected));
  });
}

TEST_CASE("axpy adds a multiple and returns its squared norm") {
  everywhere([](const Kernels& k, std::size_t size) {
    std::vector<float> y = values(9, size), expected = y;
    const std::vector<float> x = values(10, size);
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const float step = -0.7f * x[i];
      expected[i] = expected[i] + step;
      sum += double(step) * double(step);
    }
    CHECK(close(k.axpy(y, x, -0.7f), sum));
    CHECK(same_bits(y, expected));
  });
}

TEST_CASE("change and distance are the norms that their names say") {
  everywhere([](const Kernels& k, std::size_t size) {
    const std::vector<float> model = values(11, size), update = values(12, size),
                             replica = values(13, size);
    double change = 0, distance = 0, reference = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const float moved = model[i] + update[i];
      const float difference = moved - replica[i];
      const float apart = model[i] - replica[i];
      change += double(difference) * double(difference);
      distance += double(apart) * double(apart);
      reference += double(replica[i]) * double(replica[i]);
    }
    const ChangeNorms changed = k.change(model, update, replica);
    const ChangeNorms distant = k.distance(model, replica);
    CHECK(close(changed.change_squared, change));
    CHECK(close(changed.reference_squared, reference));
    CHECK(close(distant.change_squared, distance));
    CHECK(close(distant.reference_squared, reference));
  });
}

TEST_CASE("squares of tiny and of huge values neither vanish nor overflow") {
  for (const Kernels* k : kernel_versions()) {
    const std::vector<float> tiny(100, 1e-30f), huge(100, 1e30f), zero(100);
    CHECK(close(k->distance(tiny, zero).change_squared, 100 * double(1e-30f) * double(1e-30f)));
    CHECK(close(k->distance(huge, zero).change_squared, 100 * double(1e30f) * double(1e30f)));
  }
}

TEST_CASE("every instruction set returns the same bits of every norm and hash") {
  const Kernels& reference = *kernel_versions().front();
  everywhere([&](const Kernels& k, std::size_t size) {
    const std::vector<float> a = values(14, size), b = values(15, size), c = values(16, size);
    std::vector<float> mine = c, theirs = c;
    CHECK(k.transfer(mine, a, b, 0.1f) == reference.transfer(theirs, a, b, 0.1f));
    CHECK(k.axpy(mine, a, 0.1f) == reference.axpy(theirs, a, 0.1f));
    CHECK(same_bits(mine, theirs));
    CHECK(k.change(a, b, c).change_squared == reference.change(a, b, c).change_squared);
    CHECK(k.change(a, b, c).reference_squared == reference.change(a, b, c).reference_squared);
    CHECK(k.distance(a, b).change_squared == reference.distance(a, b).change_squared);
    const MovementNorms moved = k.movement(a, b);
    CHECK(moved.moved_squared == reference.distance(a, b).change_squared);
    CHECK(moved.before_squared == reference.distance(a, b).reference_squared);
    CHECK(moved.now_squared == reference.distance(b, a).reference_squared);
    CHECK(k.hash(a) == reference.hash(a));
  });
}

TEST_CASE("one value that is not finite is found wherever it stands") {
  everywhere([](const Kernels& k, std::size_t size) {
    std::vector<float> x = values(17, size), target(size);
    const std::vector<float> zeros(size);
    CHECK(k.all_finite(x));
    CHECK(k.sum(target, x, zeros));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        if (at >= size) continue;
        const float before = x[at];
        x[at] = bad;
        CHECK_FALSE(k.all_finite(x));
        CHECK_FALSE(k.sum(target, x, zeros));
        CHECK_FALSE(k.sum(target, zeros, x));
        x[at] = before;
      }
    }
    if (size > 0) {
      x[size - 1] = std::numeric_limits<float>::max();
      CHECK(k.all_finite(x));
    }
  });
}

TEST_CASE("the hash is XXH3-64 of the bytes, so that it may be stored and sent") {
  struct Known {
    std::size_t size;
    // XXH3_64bits() of the floats 0, 1, 2 …; of no bytes: from the xxHash specification
    std::uint64_t hash;
  };
  const Known table[] = {{0, 0x2d06800538d394c2ull},     {1, 0x48b2c92616fc193dull},
                         {16383, 0xa2e65318e81c8a63ull}, {16384, 0xb5e7986685148b3cull},
                         {16385, 0x2080e582292ee47bull}, {65536, 0x7666999f0a089086ull}};
  for (const Known& known : table) {
    CAPTURE(known.size);
    std::vector<float> x(known.size);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    for (const Kernels* version : kernel_versions()) CHECK(version->hash(x) == known.hash);
  }
}
