// What may be said of oneself, by what the disk holds.
#include "core/node/durable_claims.h"

#include <doctest/doctest.h>

using namespace gossipd;

TEST_CASE(
    "nothing may be said before the disk holds a state, then all up to what is reserved there") {
  DurableClaims claims;
  CHECK_FALSE(claims.allows(0));
  CHECK_FALSE(claims.left());
  CHECK(claims.cluster() == ClusterId{});
  NodeState state;
  state.incarnation = DurableClaims::reserved_above(3);
  state.left = true;
  state.cluster = ClusterId{7};
  claims.on_disk(state);
  CHECK(claims.allows(3 + DurableClaims::reserve));
  CHECK_FALSE(claims.allows(4 + DurableClaims::reserve));
  CHECK(claims.left());
  CHECK(claims.cluster() == ClusterId{7});
  state.left = false;
  claims.on_disk(state);
  CHECK_FALSE(claims.left());
}

TEST_CASE("a reservation never wraps around") {
  constexpr std::uint64_t highest = ~std::uint64_t{0};
  CHECK(DurableClaims::reserved_above(highest) == highest);
  CHECK(DurableClaims::reserved_above(highest - 1) == highest);
  CHECK(DurableClaims::reserved_above(highest - DurableClaims::reserve) == highest);
}

TEST_CASE("a life that others claim is gone beyond once, when the disk has room above it") {
  DurableClaims claims;
  NodeState state;
  state.incarnation = 8;
  claims.on_disk(state);
  CHECK(claims.await(8));
  CHECK_FALSE(claims.await(8));
  CHECK_FALSE(claims.take_awaited());
  CHECK(claims.to_reserve(1) == DurableClaims::reserved_above(8));
  CHECK(claims.to_reserve(9) == DurableClaims::reserved_above(9));
  state.incarnation = claims.to_reserve(1);
  claims.on_disk(state);
  CHECK(claims.take_awaited() == 8);
  CHECK_FALSE(claims.take_awaited());
}
