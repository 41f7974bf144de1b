// The round trip of a line, from pings of which one at a time is measured, and the clocks at both
// ends of it.
#include "core/node/round_trip.h"

#include <doctest/doctest.h>

#include "core/node/box_clock.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

Instant at(Duration time) { return Instant(time); }

struct Line {
  void ping(std::uint64_t nonce, Duration time) { trip.on_ping(nonce, 1s, 10s, at(time)); }
  RoundTrip trip;
};

}  // namespace

TEST_CASE("the next ping is due a period after the last one") {
  Line line;
  CHECK(line.trip.due(at(5s)));
  line.ping(1, 5s);
  CHECK_FALSE(line.trip.due(at(5999ms)));
  CHECK(line.trip.due(at(6s)));
}

TEST_CASE("round trips are smoothed, and the shortest one is kept") {
  Line line;
  line.ping(1, 0s);
  CHECK(line.trip.on_pong(1, at(100ms)) == at(0s));
  CHECK(line.trip.smoothed_seconds() == doctest::Approx(0.1));
  line.ping(2, 1s);
  CHECK(line.trip.on_pong(2, at(1300ms)) == at(1s));
  CHECK(line.trip.smoothed_seconds() == doctest::Approx(0.15));
  CHECK(line.trip.least_seconds() == doctest::Approx(0.1));
}

TEST_CASE("a ping stays measured although others follow, until it is given up") {
  Line line;
  line.ping(1, 0s);
  line.ping(2, 10s);
  CHECK(line.trip.awaits(1));
  CHECK_FALSE(line.trip.on_pong(2, at(10100ms)));
  line.ping(3, 10001ms);
  CHECK(line.trip.awaits(3));
  CHECK_FALSE(line.trip.on_pong(1, at(11s)));
}

TEST_CASE("an answer that was not asked for is not measured") {
  Line line;
  CHECK_FALSE(line.trip.awaits(0));
  CHECK_FALSE(line.trip.on_pong(0, at(1s)));
  line.ping(1, 1s);
  CHECK(line.trip.on_pong(1, at(2s)));
  CHECK_FALSE(line.trip.on_pong(1, at(3s)));
}

TEST_CASE("another box's clock is compared with this one's at the middle of the round trip") {
  const BoxClock clock(1'800'000'000'000, at(10s));
  CHECK(clock.ms_at(at(12s)) == 1'800'000'002'000);
  // Asked at 11 s, answered at 11.2 s with what is right then: at 11.1 s this clock was there.
  CHECK(clock.seconds_ahead(1'800'000'001'100, at(11s), at(11200ms)) == doctest::Approx(0));
  CHECK(clock.seconds_ahead(1'800'000'061'100, at(11s), at(11200ms)) == doctest::Approx(60));
  CHECK(clock.seconds_ahead(1'799'999'941'100, at(11s), at(11200ms)) == doctest::Approx(-60));
}

TEST_CASE("a box that does not know its clock tells nothing and finds nothing") {
  CHECK(BoxClock().ms_at(at(10s)) == 0);
  CHECK_FALSE(BoxClock().seconds_ahead(1'800'000'000'000, at(0s), at(1s)));
  CHECK_FALSE(BoxClock(1'800'000'000'000, at(0s)).seconds_ahead(0, at(0s), at(1s)));
}
