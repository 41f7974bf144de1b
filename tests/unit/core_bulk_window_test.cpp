// How much of a turn may wait on a link's way out.
#include <doctest/doctest.h>

#include "core/node/bulk_window.h"

using namespace gossipd;

namespace {

constexpr std::size_t least = 1000;
constexpr std::uint64_t floats = 80'000;  // a 32nd of them is 10,000 bytes
constexpr NodeId near{1}, far{2};

}  // namespace

TEST_CASE(
    "a line that keeps up gets twice the window after each pause, up to a 32nd of the model") {
  BulkWindow window(least);
  for (const std::size_t want : {2000, 4000, 8000, 10'000, 10'000}) {
    window.pause(near);
    window.begin_round(near, 0, floats);
    CHECK(window.of(near) == want);
  }
  window.begin_round(near, 0, floats);  // nothing has waited for room
  CHECK(window.of(near) == 10'000);
  CHECK(window.of(far) == least);
}

TEST_CASE("a line that does not keep up gets half of it, and never less than the setting") {
  BulkWindow window(least);
  for (int i = 0; i < 3; ++i) {
    window.pause(far);
    window.begin_round(far, 0, floats);
  }
  REQUIRE(window.of(far) == 8000);
  window.pause(far);
  window.begin_round(far, 4000, floats);  // half has left: it stays as it is
  CHECK(window.of(far) == 8000);
  for (const std::size_t want : {4000, 2000, 1000, 1000}) {
    window.pause(far);
    window.begin_round(far, window.of(far), floats);
    CHECK(window.of(far) == want);
  }
}

TEST_CASE("a small model's window is the setting, and a link that is gone begins anew") {
  BulkWindow window(least);
  window.pause(near);
  window.begin_round(near, 0, 100);
  CHECK(window.of(near) == least);
  window.pause(near);
  window.begin_round(near, 0, floats);
  CHECK(window.of(near) == 2 * least);
  window.forget_unless([](NodeId peer) { return peer == near; });
  CHECK(window.of(near) == 2 * least);
  window.forget_unless([](NodeId) { return false; });
  CHECK(window.of(near) == least);
}
