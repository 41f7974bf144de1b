// Waits after failures, and periods that nodes do not share.
#include "core/base/backoff.h"

#include <doctest/doctest.h>

using namespace gossipd;
using namespace std::chrono_literals;

TEST_CASE("a wait doubles with every failure up to its bound, and starts over once forgotten") {
  Backoff backoff(10s, 2);
  CHECK(backoff.fail() == 10s);
  CHECK(backoff.fail() == 20s);
  CHECK(backoff.fail() == 40s);
  CHECK(backoff.fail() == 40s);
  backoff.forget();
  CHECK(backoff.fail() == 10s);
}

TEST_CASE("a spread duration stays within its part on both sides, and reaches both") {
  Random random(7);
  Duration least = 100s, most{};
  for (int i = 0; i < 1000; ++i) {
    const Duration wait = spread(10s, 0.25, random);
    least = std::min(least, wait);
    most = std::max(most, wait);
  }
  CHECK(least >= 7500ms);
  CHECK(least < 7600ms);
  CHECK(most > 12400ms);
  CHECK(most <= 12500ms);
}
