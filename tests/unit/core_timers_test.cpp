#include <doctest/doctest.h>

#include "core/node/persistence.h"
#include "core/node/timers.h"

using namespace gossipd;
using namespace std::chrono_literals;

TEST_CASE("a look that was taken is due again a period later, and the others still are") {
  const Instant now{10s};
  Timers timers;
  CHECK(timers.next() <= now);
  for (const Duty timer : {Duty::look, Duty::overlay, Duty::tick})
    CHECK(timers.take(timer, timer == Duty::look ? Duration(1s) : Duration(5s), now));
  CHECK(timers.next() == now + 1s);
  CHECK_FALSE(timers.take(Duty::look, 1s, now + 999ms));
  CHECK(timers.take(Duty::look, 1s, now + 1s));
  CHECK_FALSE(timers.take(Duty::tick, 5s, now + 1s));
}

TEST_CASE("a look can be brought forward, not put off") {
  const Instant now{10s};
  Timers timers;
  for (const Duty timer : {Duty::look, Duty::overlay, Duty::tick})
    CHECK(timers.take(timer, 5s, now));
  timers.by(Duty::overlay, now + 1s);
  CHECK(timers.next() == now + 1s);
  timers.by(Duty::overlay, now + 4s);
  CHECK(timers.next() == now + 1s);
  CHECK(timers.take(Duty::overlay, 5s, now + 1s));
  CHECK(timers.next() == now + 5s);
}

TEST_CASE("an urgent state stays urgent until it is written, whatever the period says") {
  const Instant now{10s};
  Persistence persistence(now, Duration{}, Duration{});
  Directory directory(NodeId{1}, 8);
  CHECK_FALSE(persistence.is_urgent());
  CHECK(persistence.is_due(now));
  persistence.urge();
  CHECK_FALSE(persistence.is_due(now + 1s));
  CHECK(persistence.is_urgent());
  (void)persistence.to_write(NodeState{}, directory, now + 1s);
  CHECK_FALSE(persistence.is_urgent());
}
