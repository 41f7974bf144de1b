// A member that names thousands of addresses of others does not make this node flood them.
#include <doctest/doctest.h>

#include "core/node/dial_budget.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

Instant at(std::chrono::milliseconds time) { return Instant(time); }

// As often as it is let, every 10 ms for `time`, to endpoints that `endpoint(i)` makes up.
template <typename Make>
int dials_in(DialBudget& budget, std::chrono::milliseconds time, Make endpoint) {
  int dials = 0;
  for (std::chrono::milliseconds now{0}; now < time; now += 10ms)
    for (int i = 0; i < 100; ++i) {
      const Endpoint there = endpoint(static_cast<int>(now.count()) * 10 + i);
      if (!budget.admits(there, at(now))) continue;
      budget.spend(there, at(now));
      ++dials;
    }
  return dials;
}

}  // namespace

TEST_CASE("dials to ever new hosts are bounded by the second") {
  DialBudget budget;
  const int dials = dials_in(budget, 60s, [](int i) {
    return Endpoint{"10.0." + std::to_string(i), 7610};
  });
  CHECK(dials >= 600);
  CHECK(dials <= 64 + 600);
}

TEST_CASE("dials to one host are bounded over all its ports") {
  DialBudget budget;
  const int dials = dials_in(budget, 60s, [](int i) {
    return Endpoint{"192.0.2.1", static_cast<std::uint16_t>(i)};
  });
  CHECK(dials >= 120);
  CHECK(dials <= 24 + 120);
}

TEST_CASE("a host at which members answer may be dialled as often as the whole allows") {
  DialBudget budget;
  const Endpoint host{"127.0.0.1", 7610};
  for (int i = 0; i < 60; ++i) {
    REQUIRE(budget.admits(host, at(1s)));
    budget.spend(host, at(1s));
    budget.answered(host);
  }
}

TEST_CASE(
    "hosts are forgotten when their time is up, and never more than a maximum is remembered") {
  DialBudget budget(
      {.per_second = 1000, .burst = 1000, .host_per_second = 1, .host_burst = 2, .hosts_max = 10});
  for (int i = 0; i < 10; ++i) {
    const Endpoint host{std::to_string(i), 1};
    REQUIRE(budget.admits(host, at(0s)));
    budget.spend(host, at(0s));
  }
  CHECK(!budget.admits({"one more", 1}, at(0s)));
  CHECK(budget.admits({"3", 1}, at(0s)));
  budget.spend({"3", 1}, at(5s));
  CHECK(budget.admits({"one more", 1}, at(5s)));
}
