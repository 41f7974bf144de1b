// Which sessions are silent or dead, and whom to suspect, by time and signs of life alone.
#include "core/node/failure_detector.h"

#include <doctest/doctest.h>

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr NodeId own{1}, peer{2}, other{3};
constexpr SessionId line{10}, second{11};
const MembershipPolicy policy{.suspect_after = 3s, .fail_after = 10s};

Instant at(Duration time) { return Instant{1000s} + time; }

MemberRecord member(NodeId id, const Endpoint& address) {
  MemberRecord record;
  record.id = id;
  record.address = address;
  record.incarnation = 1;
  return record;
}

// Looks at the time every 100 ms, as a node that is well does.
struct Watch {
  Watch() {
    directory.set_self(member(own, {"own", 1}), true, at(0s));
    (void)directory.merge(member(peer, {"peer", 1}), at(0s));
    (void)directory.merge(member(other, {"other", 1}), at(0s));
  }
  void pass(Duration time) {
    for (const Instant end = now + time; now < end;) detector.on_time(now += 100ms);
  }
  void establish(SessionId session, NodeId id) {
    detector.on_open(session, now);
    detector.on_established(session, id);
  }
  FailureDetector::Verdicts judge() { return detector.judge(directory, now); }

  Instant now = at(0s);
  FailureDetector detector{policy, now};
  Directory directory{own};
};

}  // namespace

TEST_CASE("a silent member is accused once, and its session is dead when the silence lasts") {
  Watch watch;
  watch.establish(line, peer);
  watch.pass(3s);
  CHECK(watch.judge().silent.empty());
  watch.pass(100ms);
  const auto verdicts = watch.judge();
  REQUIRE(verdicts.silent.size() == 1);
  CHECK(verdicts.silent[0].member == peer);
  CHECK(verdicts.silent[0].last_heard == at(0s));
  CHECK(verdicts.dead.empty());
  watch.pass(6900ms);
  CHECK(watch.judge().silent.empty());
  CHECK(watch.judge().dead.empty());
  watch.pass(100ms);
  REQUIRE(watch.judge().dead.size() == 1);
  CHECK(watch.judge().dead[0].session == line);
}

TEST_CASE("a sign of life ends a silence, and the next one is accused anew") {
  Watch watch;
  watch.establish(line, peer);
  watch.pass(4s);
  CHECK(watch.judge().silent.size() == 1);
  watch.detector.on_sign_of_life(line, watch.now);
  watch.pass(3s);
  CHECK(watch.judge().silent.empty());
  watch.pass(1s);
  CHECK(watch.judge().silent.size() == 1);
}

TEST_CASE("a session to a member that failed is dead as soon as it is silent") {
  Watch watch;
  watch.establish(line, peer);
  REQUIRE(watch.directory.set_failed(peer, false, watch.now));
  watch.pass(3s);
  CHECK(watch.judge().dead.empty());
  watch.pass(100ms);
  CHECK(watch.judge().dead.size() == 1);
}

TEST_CASE("a session without a handshake is dead after its time, whatever bytes come") {
  Watch watch;
  watch.detector.on_open(line, watch.now);
  watch.pass(10s);
  watch.detector.on_sign_of_life(line, watch.now);
  CHECK(watch.judge().dead.empty());
  watch.pass(100ms);
  REQUIRE(watch.judge().dead.size() == 1);
  CHECK(watch.judge().dead[0].reason == "no handshake in time");
  watch.detector.on_end(line);
  CHECK(watch.judge().dead.empty());
}

TEST_CASE("time in which this node did not listen is no silence of others") {
  Watch watch;
  watch.establish(line, peer);
  watch.pass(1s);
  const auto attention = watch.detector.on_time(watch.now += 60s);
  CHECK(attention.deaf == 60s - FailureDetector::attention_max);
  CHECK(attention.stood_still == 60s);
  CHECK(watch.judge().silent.empty());
  CHECK(watch.judge().dead.empty());
  CHECK(watch.detector.is_thawing(watch.now));
  watch.pass(10s);
  CHECK_FALSE(watch.detector.is_thawing(watch.now));
  CHECK(watch.judge().silent.size() == 1);
}

TEST_CASE(
    "what is heard before the first look at the time after a stand-still is not dated later") {
  Watch watch;
  watch.establish(line, peer);
  watch.now += 60s;
  REQUIRE(watch.directory.accuse(other, watch.now));
  watch.detector.on_sign_of_life(line, watch.now);
  watch.detector.on_time(watch.now);
  watch.directory.forgive(60s, watch.now);
  CHECK(watch.detector.last_heard(line) == watch.now);
  watch.pass(policy.suspect_after + 100ms);
  CHECK(watch.judge().silent.size() == 1);
  watch.pass(policy.fail_after);
  CHECK(watch.directory.overdue(watch.detector.timeouts(), watch.now).size() == 1);
}

TEST_CASE("a short pause is deafness, but puts a node out of step neither with itself nor others") {
  Watch watch;
  const auto short_pause = watch.detector.on_time(watch.now += 1s);
  CHECK(short_pause.deaf == 500ms);
  CHECK(short_pause.stood_still == 0s);
  const auto longer = watch.detector.on_time(watch.now += 5s);
  CHECK(longer.stood_still == 5s);
  CHECK_FALSE(watch.detector.is_thawing(watch.now));
  CHECK(watch.detector.on_time(watch.now += 500ms).deaf == 0s);
}

TEST_CASE("a node that had to refute suspicions waits longer before it suspects others") {
  Watch watch;
  CHECK(watch.detector.timeouts().suspect_after == 3s);
  watch.detector.on_refuted(watch.now);
  CHECK(watch.detector.timeouts().suspect_after == 6s);
  for (int i = 0; i < 5; ++i) watch.detector.on_refuted(watch.now);
  CHECK(watch.detector.timeouts().fail_after == 30s);
  watch.detector.check_invariants();
  watch.pass(10s);
  CHECK(watch.detector.timeouts().suspect_after == 3s);
}

TEST_CASE("only a linked peer that spoke lately counts as heard") {
  Watch watch;
  watch.detector.on_open(second, watch.now);
  CHECK_FALSE(watch.detector.hears_anybody(watch.now));
  watch.establish(line, peer);
  CHECK(watch.detector.hears_anybody(watch.now));
  watch.pass(3100ms);
  CHECK_FALSE(watch.detector.hears_anybody(watch.now));
}

TEST_CASE(
    "if an address does not answer, only members without news and without a session are "
    "suspected") {
  Watch watch;
  const auto missing = [&](const char* host, NodeId but) {
    return watch.detector.missing_at({host, 1}, but, watch.directory, watch.now).size();
  };
  CHECK(missing("peer", NodeId{}) == 0);  // its record is fresh
  CHECK(missing("peer", other) == 1);     // another node is there
  CHECK(missing("peer", peer) == 0);
  CHECK(missing("own", other) == 0);
  watch.pass(3100ms);
  CHECK(missing("peer", NodeId{}) == 1);
  CHECK(missing("nobody", NodeId{}) == 0);
  watch.establish(line, peer);
  CHECK(missing("peer", NodeId{}) == 0);
}

TEST_CASE("a quiet member whose address is another's or nowhere is displaced") {
  Watch watch;
  (void)watch.directory.merge(member(NodeId{4}, {"", 0}), watch.now);
  const std::set<Endpoint> taken{{"peer", 1}};
  CHECK(watch.detector.displaced(taken, watch.directory, watch.now).empty());
  watch.pass(3100ms);
  CHECK(watch.detector.displaced(taken, watch.directory, watch.now).size() == 2);
  REQUIRE(watch.directory.accuse(peer, at(0s)));
  CHECK(watch.detector.displaced(taken, watch.directory, watch.now).size() == 1);
}

TEST_CASE("what this node missed while it stood still is no silence of members without a link") {
  Watch watch;
  const std::set<Endpoint> taken{{"peer", 1}};
  watch.directory.heard_from(other, at(2s));
  watch.now = at(60s);
  watch.directory.forgive(57s, watch.now);
  CHECK(watch.detector.missing_at({"peer", 1}, NodeId{}, watch.directory, watch.now).empty());
  CHECK(watch.detector.displaced(taken, watch.directory, watch.now).empty());
  CHECK(watch.directory.find(other)->refreshed == at(59s));
  watch.directory.forgive(57s, watch.now);
  CHECK(watch.directory.find(other)->refreshed == watch.now);  // not beyond it
}

TEST_CASE("probes are due once in each period, and never with a period of 0") {
  Random random(3);
  Watch watch;
  std::size_t probes = 0;
  for (int i = 0; i < 1000; ++i, watch.pass(100ms))
    probes += watch.detector.probe_due(watch.now, random) ? 1 : 0;
  CHECK(probes >= 8);
  CHECK(probes <= 14);
  FailureDetector without({.probe = 0s}, at(0s));
  CHECK_FALSE(without.probe_due(at(100s), random));
}

TEST_CASE("suspicions are handed on once, and no more of them than fit into a message") {
  Watch watch;
  for (std::size_t i = 0; i < 2 * FailureDetector::suspicions_max; ++i)
    watch.detector.hand_on({.id = NodeId{i + 2}, .incarnation = 1, .by = own});
  watch.detector.check_invariants();
  CHECK(watch.detector.take_suspicions().size() == FailureDetector::suspicions_max);
  CHECK(watch.detector.take_suspicions().empty());
}
