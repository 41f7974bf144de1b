// What may be said of oneself, by what the disk holds.
#include "core/node/claims.h"

#include <doctest/doctest.h>

using namespace gossipd;

TEST_CASE(
    "nothing may be said before the disk holds a state, then all up to what is reserved there") {
  Claims claims;
  CHECK_FALSE(claims.allows(0));
  CHECK_FALSE(claims.left());
  CHECK(claims.cluster() == ClusterId{});
  NodeState state;
  state.incarnation = Claims::reserved_above(3);
  state.left = true;
  state.cluster = ClusterId{7};
  claims.on_disk(state);
  CHECK(claims.allows(3 + Claims::reserve));
  CHECK_FALSE(claims.allows(4 + Claims::reserve));
  CHECK(claims.left());
  CHECK(claims.cluster() == ClusterId{7});
  state.left = false;
  claims.on_disk(state);
  CHECK_FALSE(claims.left());
}

TEST_CASE("what is reserved never wraps round") {
  constexpr std::uint64_t highest = ~std::uint64_t{0};
  CHECK(Claims::reserved_above(highest) == highest);
  CHECK(Claims::reserved_above(highest - 1) == highest);
  CHECK(Claims::reserved_above(highest - Claims::reserve) == highest);
}
