// Which endpoints may be dialled and when, and what is remembered of them.
#include "core/node/dialer.h"

#include <doctest/doctest.h>

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

const Endpoint self{"self", 1}, box{"box", 1};
const MembershipPolicy policy{.rotate = 60s, .redial_min = 300ms, .redial_max = 15s};

Instant at(Duration time) { return Instant{1000s} + time; }
Endpoint host(std::size_t i) { return {"host" + std::to_string(i), 1}; }

struct Dials {
  void dial(const Endpoint& endpoint, Duration time, NodeId probed = {}) {
    dialer.on_dial(endpoint, probed, random, at(time));
  }
  [[nodiscard]] bool may(const Endpoint& endpoint, Duration time) const {
    return dialer.may_dial(endpoint, at(time));
  }
  Random random{1};
  Dialer dialer{policy, self, {}, {}};
};

}  // namespace

TEST_CASE("seeds are added once, and all of a command's or none") {
  const auto leads_here = [](const Endpoint& there) { return there.host == "loopback"; };
  Dialer dialer(policy, self, leads_here, {box});
  CHECK_FALSE(dialer.add_seeds({box, host(1)}));
  CHECK(dialer.seeds().size() == 2);
  CHECK(dialer.add_seeds({host(2), self})->code == "self");
  CHECK(dialer.add_seeds({host(2), Endpoint{"loopback", 1}})->code == "self");
  CHECK(dialer.add_seeds({host(2), Endpoint{"box", 0}})->code == "not-dialled");
  CHECK(dialer.add_seeds({host(2), Endpoint{"", 1}})->code == "not-dialled");
  CHECK(dialer.seeds().size() == 2);
}

TEST_CASE("a founder waits for the seeds that it has now") {
  Dialer dialer(policy, self, {}, {box, host(1)}, ClusterId{9});
  CHECK_FALSE(dialer.founding().on_free(host(7), NodeId{5}));
  CHECK(dialer.founding().on_free(host(1), NodeId{5}));
  dialer.founding().on_self(box);
  CHECK(dialer.founding().is_due());
  CHECK_FALSE(dialer.add_seeds({host(2)}));  // box, which leads back here, is not asked again
  CHECK_FALSE(dialer.founding().is_due());
  CHECK(dialer.founding().waits_for().find("host2:1") != std::string::npos);
  CHECK(dialer.founding().waits_for().find("box") == std::string::npos);
  dialer.replace_seeds({host(3), host(1)});  // what host1 has said stands
  CHECK(dialer.founding().waits_for().find("host2:1") == std::string::npos);
  CHECK(dialer.founding().on_free(host(3), NodeId{6}));
  CHECK(dialer.founding().is_due());
}

TEST_CASE("there are never more than seeds_max seeds, and the operator is told so") {
  Dialer dialer(policy, self, {}, {});
  for (std::size_t i = 0; i < seeds_max; ++i) CHECK_FALSE(dialer.add_seeds({host(i)}));
  CHECK_FALSE(dialer.add_seeds({host(0)}));  // known already
  const auto refused = dialer.add_seeds({box});
  REQUIRE(refused);
  CHECK(refused->code == "too-many-seeds");
  CHECK(refused->text.find(std::to_string(seeds_max)) != std::string::npos);
  dialer.check_invariants();
}

TEST_CASE("an endpoint that fails is dialled again ever later, up to redial_max") {
  Dials dials;
  Duration now{};
  for (int failures = 0; failures < 12; ++failures) {
    CHECK(dials.may(box, now));
    dials.dial(box, now);
    CHECK_FALSE(dials.may(box, now + 1h));  // in flight
    (void)dials.dialer.on_failed(box, "refused");
    const Duration backoff = std::min<Duration>(15s, 300ms * (1 << failures));
    CHECK_FALSE(dials.may(box, now + backoff * 7 / 10));
    now += backoff * 13 / 10;
  }
  dials.dialer.forgive(at(now - 10s));
  CHECK(dials.may(box, now - 10s));
}

TEST_CASE("a failure is news when its reason is another one") {
  Dials dials;
  CHECK(dials.dialer.on_failed(box, "refused"));
  CHECK_FALSE(dials.dialer.on_failed(box, "refused"));
  CHECK(dials.dialer.on_failed(box, "unreachable"));
  dials.dialer.on_linked(box);
  CHECK(dials.dialer.on_failed(box, "unreachable"));
}

TEST_CASE("a refusal counts like several failures, and a link forgives them") {
  Dials dials;
  dials.dial(box, 0s);
  CHECK(dials.dialer.on_connected(box) == NodeId{});
  dials.dialer.on_refused(box);
  dials.dial(box, 10s);
  (void)dials.dialer.on_connected(box);
  CHECK_FALSE(dials.may(box, 10s + 3s));  // 300 ms doubled four times, less a quarter
  CHECK(dials.may(box, 10s + 7s));
  dials.dialer.on_linked(box);
  dials.dial(box, 20s);
  (void)dials.dialer.on_connected(box);
  CHECK(dials.may(box, 20s + 400ms));
}

TEST_CASE("an endpoint that leads back to this node rests, then is tried again") {
  Dials dials;
  dials.dial(box, 0s);
  (void)dials.dialer.on_connected(box);
  CHECK(dials.dialer.on_reflected(box, "it is me", at(0s)));
  CHECK_FALSE(dials.dialer.on_reflected(box, "it is me", at(0s)));
  CHECK_FALSE(dials.may(box, Dialer::self_rest - 1ms));
  CHECK(dials.may(box, Dialer::self_rest));
}

TEST_CASE("a probe is no dial for a link, and leaves nothing behind when it is answered") {
  Dials dials;
  dials.dial(box, 0s, NodeId{7});
  dials.dial(host(1), 0s);
  CHECK(dials.dialer.under_way() == 1);
  CHECK(dials.dialer.on_connected(box) == NodeId{7});
  CHECK(dials.dialer.on_connected(box) == NodeId{});
  CHECK_FALSE(dials.may(box, 1ms));
  dials.dialer.on_probe_answered(box);
  CHECK(dials.may(box, 1ms));
}

TEST_CASE("no more than dials_max endpoints are remembered, and none in flight is forgotten") {
  Dials dials;
  dials.dial(box, 0s);
  for (std::size_t i = 0; i < Dialer::dials_max + 100; ++i) {
    (void)dials.dialer.on_failed(host(i), "refused");
    if (i % 1000 == 0) dials.dialer.check_invariants();
  }
  dials.dialer.check_invariants();
  CHECK(dials.dialer.under_way() == 1);
}

TEST_CASE("failed members are looked at every second until one may be dialled, then more rarely") {
  Dials dials;
  CHECK(dials.dialer.failed_due(at(0s)));
  dials.dialer.on_failed_looked(false, dials.random, at(0s));
  CHECK_FALSE(dials.dialer.failed_due(at(999ms)));
  CHECK(dials.dialer.failed_due(at(1s)));
  dials.dialer.on_failed_looked(true, dials.random, at(1s));
  CHECK_FALSE(dials.dialer.failed_due(at(5999ms)));
  CHECK(dials.dialer.failed_due(at(16s)));
}

TEST_CASE("a link is to be replaced once in a period, the first time after one has passed") {
  Dials dials;
  CHECK_FALSE(dials.dialer.rotation_due(dials.random, at(0s)));
  CHECK_FALSE(dials.dialer.rotation_due(dials.random, at(44s)));
  CHECK(dials.dialer.rotation_due(dials.random, at(76s)));
  CHECK_FALSE(dials.dialer.rotation_due(dials.random, at(77s)));
  const Endpoint there{"box2", 7610}, elsewhere{"box3", 7610};
  dials.dialer.begin_rotation(there);
  CHECK(dials.dialer.is_rotating(there));
  CHECK_FALSE(dials.dialer.is_rotating(elsewhere));
  dials.dialer.end_rotation();
  CHECK_FALSE(dials.dialer.is_rotating(there));
  Dialer never({.rotate = 0s}, self, {}, {});
  CHECK_FALSE(never.rotation_due(dials.random, at(0s)));
  CHECK_FALSE(never.rotation_due(dials.random, at(1h)));
}
