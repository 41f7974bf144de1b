// Two processes with one id, and what looks like them.
#include <doctest/doctest.h>

#include "core/membership/instances.h"

using namespace gossipd;
using Heard = Instances::Heard;

namespace {
constexpr NodeId id{7};
}

TEST_CASE("a process that began in an earlier life has the lower instance, and none is 0") {
  CHECK(make_instance(1, 0xffffffff) < make_instance(2, 1));
  CHECK(make_instance(1, 1) < make_instance(1, 2));
  CHECK(make_instance(0, 0) != 0);
  CHECK(make_instance(~std::uint64_t{0}, 5) > make_instance(1, 5));
}

TEST_CASE("a node that restarts again and again is no clone, also from an old backup") {
  Instances instances;
  std::uint64_t random = 1;
  for (const std::uint64_t incarnation : {1, 2, 3, 4, 2, 5})
    CHECK(instances.hear(id, make_instance(incarnation, random++)) == Heard::alone);
  for (std::uint64_t i = 1; i < 100; ++i)
    CHECK(instances.hear(NodeId{8}, make_instance(i, 5)) == Heard::alone);
  CHECK_FALSE(instances.is_cloned(id));
}

TEST_CASE(
    "who is heard again after another has followed is asked, and the one that began earlier keeps "
    "the id") {
  const std::uint64_t original = make_instance(3, 50), copy = make_instance(4, 20);
  for (const bool copy_first : {false, true}) {
    CAPTURE(copy_first);
    Instances instances;
    const std::uint64_t first = copy_first ? copy : original, second = copy_first ? original : copy;
    CHECK(instances.hear(id, first) == Heard::alone);
    CHECK(instances.hear(id, second) == Heard::alone);
    CHECK(instances.hear(id, second) == Heard::alone);
    CHECK(instances.hear(id, first) == Heard::again);
    CHECK_FALSE(instances.is_cloned(id));  // a message that was delayed
    CHECK(instances.returned(id, first) == (first == original));
    CHECK(instances.is_cloned(id));
    CHECK(instances.hear(id, original) == Heard::alone);
    CHECK(instances.hear(id, copy) == Heard::outlived);
  }
}

TEST_CASE(
    "of two processes one of which has restarted since, the lower instance keeps the id still") {
  Instances instances;
  const std::uint64_t original = make_instance(3, 50), copy = make_instance(4, 20),
                      restarted = make_instance(6, 1);
  for (const std::uint64_t instance : {original, copy, original})
    (void)instances.hear(id, instance);
  CHECK(instances.returned(id, original));
  CHECK(instances.hear(id, restarted) == Heard::alone);
  CHECK(instances.hear(id, copy) == Heard::again);
  CHECK(instances.returned(id, copy));
  CHECK(instances.hear(id, restarted) == Heard::outlived);
  CHECK(instances.is_cloned(id));
}

TEST_CASE(
    "addresses that a node has left and returns to are told apart from those it moves on to") {
  Instances instances;
  CHECK_FALSE(instances.moved(id, {"a", 1}, {"b", 1}));
  CHECK_FALSE(instances.moved(id, {"b", 1}, {"c", 1}));
  CHECK(instances.moved(id, {"c", 1}, {"a", 1}));
  CHECK(instances.other_address(id, {"c", 1}) == Endpoint{"b", 1});
  CHECK(instances.other_address(NodeId{9}, {"c", 1}) == Endpoint{});
}

TEST_CASE("a release that says no instance is let be") {
  Instances instances;
  CHECK(instances.hear(id, 0) == Heard::alone);
  CHECK(instances.hear(id, 5) == Heard::alone);
  CHECK(instances.hear(id, 0) == Heard::alone);
  CHECK_FALSE(instances.is_cloned(id));
}

TEST_CASE("memory of instances is bounded") {
  Instances instances;
  for (std::uint64_t i = 1; i <= 100'000; ++i) (void)instances.hear(NodeId{i}, 1);
  for (std::uint64_t i = 1; i <= 100; ++i) (void)instances.hear(id, i);
  CHECK(instances.hear(id, 99) == Heard::again);
  CHECK(instances.hear(id, 50) == Heard::alone);  // long ago
}
