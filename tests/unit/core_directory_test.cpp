// What a node believes of the others, whatever order the gossip comes in.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "core/base/random.h"
#include "core/membership/directory.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

const Instant start{100s};

MemberRecord record(std::uint64_t id, std::uint64_t incarnation, std::uint64_t tick,
                    MemberState state = MemberState::alive, Samples samples = 0) {
  MemberRecord r;
  r.id = NodeId{id};
  r.name = "node";
  r.incarnation = incarnation;
  r.tick = tick;
  r.state = state;
  r.samples = samples;
  return r;
}

Directory directory() {
  Directory d(NodeId{1});
  d.set_self(record(1, 5, 1, MemberState::alive, 100), true, start);
  return d;
}

}  // namespace

TEST_CASE(
    "a higher incarnation replaces, a later state of the same one wins, and samples never fall") {
  Directory d = directory();
  CHECK(d.merge(record(2, 1, 1, MemberState::alive, 50), start) == Directory::Outcome::joined);
  CHECK(d.merge(record(2, 1, 1, MemberState::failed, 10), start) == Directory::Outcome::failed);
  CHECK(d.find(NodeId{2})->record.samples == 50);
  CHECK(d.merge(record(2, 1, 9, MemberState::alive), start) == Directory::Outcome::updated);
  CHECK(d.find(NodeId{2})->record.state == MemberState::failed);
  CHECK(d.merge(record(2, 2, 1, MemberState::alive), start) == Directory::Outcome::revived);
  CHECK(d.merge(record(2, 1, 99, MemberState::left), start) == Directory::Outcome::unchanged);
  CHECK(d.find(NodeId{2})->record.state == MemberState::alive);
  CHECK(d.others_samples() == 50);
}

TEST_CASE(
    "a node that is held to have failed is told to refute, and one that forgot samples gets them "
    "back") {
  Directory d = directory();
  CHECK(d.merge(record(1, 5, 1, MemberState::failed), start) == Directory::Outcome::accused);
  CHECK(d.merge(record(1, 4, 9, MemberState::failed), start) == Directory::Outcome::unchanged);
  CHECK(d.merge(record(1, 4, 9, MemberState::alive, 5000), start) == Directory::Outcome::recovered);
  CHECK(d.self().samples == 5000);
}

TEST_CASE("of its own steps a node believes no more than one a sample that it gets back") {
  Directory d = directory();
  MemberStats lie = stats_of(record(1, 5, 1, MemberState::alive, 103));
  lie.step = (Step{1} << 62) - 1;
  CHECK(d.merge(lie, start, SessionId{1}) == Directory::Outcome::recovered);
  CHECK(d.self().step == 3);
  MemberStats fair = stats_of(record(1, 5, 1, MemberState::alive, 203));
  fair.step = 13;
  CHECK(d.merge(fair, start, SessionId{1}) == Directory::Outcome::recovered);
  CHECK(d.self().step == 13);
}

TEST_CASE(
    "a suspicion is handed on once by each who holds it, and ends with a sign of life or a higher "
    "incarnation") {
  Directory d = directory();
  (void)d.merge(record(2, 3, 1), start);
  CHECK(d.accuse(NodeId{2}, start));
  CHECK_FALSE(d.accuse(NodeId{2}, start));
  CHECK(d.merge(Suspicion{NodeId{2}, 3, NodeId{7}}, start));
  CHECK_FALSE(d.merge(Suspicion{NodeId{2}, 3, NodeId{7}}, start));
  CHECK_FALSE(d.merge(Suspicion{NodeId{2}, 2, NodeId{8}}, start));  // of a former life
  CHECK_FALSE(d.merge(Suspicion{NodeId{9}, 1, NodeId{8}}, start));  // nobody that is known
  CHECK(d.find(NodeId{2})->record.state == MemberState::alive);
  d.heard_from(NodeId{2}, start + 1s);
  CHECK_FALSE(d.find(NodeId{2})->suspect);
  CHECK(d.merge(Suspicion{NodeId{2}, 3, NodeId{8}}, start));
  MemberStats late = stats_of(record(2, 3, 50));
  CHECK(d.merge(late, start, SessionId{1}) == Directory::Outcome::updated);
  CHECK(d.find(NodeId{2})->suspect);  // stats may have been on their way for long
  CHECK(d.merge(record(2, 4, 1), start) == Directory::Outcome::updated);
  CHECK_FALSE(d.find(NodeId{2})->suspect);
}

TEST_CASE(
    "a suspect is given up sooner the more accuse it, later where it was only heard of, and later "
    "after our own silence") {
  const Directory::Timeouts timeouts{3s, 10s};
  const auto patience = [&](std::size_t others, bool own, Duration deaf, bool last = false) {
    Directory d = directory();
    (void)d.merge(record(2, 1, 1), start);
    if (own && !last) (void)d.accuse(NodeId{2}, start);
    for (std::size_t i = 0; i < others; ++i)
      (void)d.merge(Suspicion{NodeId{2}, 1, NodeId{10 + i}}, start);
    if (own && last) (void)d.accuse(NodeId{2}, start);
    d.forgive(deaf, start + deaf);
    Duration waited{};
    while (d.overdue(timeouts, start + waited).empty() && waited < 60s) waited += 100ms;
    return waited;
  };
  CHECK(patience(0, true, 0s) == 10100ms);
  CHECK(patience(1, true, 0s) < patience(0, true, 0s));
  CHECK(patience(3, true, 0s) < patience(1, true, 0s));
  CHECK(patience(9, true, 0s) == 6600ms);
  CHECK(patience(9, true, 0s, true) == 6600ms);  // whoever accuses first
  CHECK(patience(3, false, 0s) == 20100ms);
  CHECK(patience(0, true, 5s) == 15100ms);
}

TEST_CASE(
    "only who failed or left is forgotten; the samples count on, spread, and a later life is a "
    "member again") {
  Directory d = directory();
  (void)d.merge(record(2, 1, 1, MemberState::alive, 50), start);
  CHECK_FALSE(d.set_forgotten(NodeId{2}, start));
  CHECK_FALSE(d.set_forgotten(NodeId{3}, start));
  CHECK(d.set_failed(NodeId{2}, false, start));
  CHECK(d.set_forgotten(NodeId{2}, start));
  CHECK(d.others_samples() == 50);
  CHECK(d.alive_others() == 0);
  CHECK(d.merge(record(2, 1, 9, MemberState::left, 70), start) == Directory::Outcome::updated);
  CHECK(d.find(NodeId{2})->record.state == MemberState::forgotten);
  CHECK(d.others_samples() == 70);
  Directory other = directory();
  (void)other.merge(record(2, 1, 1, MemberState::failed, 60), start);
  CHECK(other.merge(d.find(NodeId{2})->record, start) == Directory::Outcome::left);
  CHECK(other.others_samples() == 70);
  CHECK(d.merge(record(2, 2, 1, MemberState::alive, 80), start) == Directory::Outcome::revived);
  CHECK(d.others_samples() == 80);
}

TEST_CASE("a verdict that a node reached alone is void once it meets another member") {
  Directory d = directory();
  (void)d.merge(record(2, 1, 1), start);
  (void)d.merge(record(3, 1, 1), start);
  CHECK(d.set_failed(NodeId{2}, true, start));
  CHECK(d.set_failed(NodeId{3}, false, start));
  d.doubt_lonely_verdicts(start);
  CHECK(d.find(NodeId{2})->record.state == MemberState::alive);
  CHECK(d.find(NodeId{3})->record.state == MemberState::failed);
  CHECK(d.alive_others() == 1);
}

TEST_CASE("a restart is not to know a verdict reached alone, but that a member has left") {
  Directory d = directory();
  for (const std::uint64_t id : {2, 3, 4}) (void)d.merge(record(id, 1, 1), start);
  CHECK(d.set_failed(NodeId{2}, true, start));
  CHECK(d.set_failed(NodeId{3}, false, start));
  CHECK(d.set_failed(NodeId{4}, true, start));
  (void)d.merge(record(4, 1, 2, MemberState::left), start);
  CHECK(d.find(NodeId{2})->to_keep().state == MemberState::alive);
  CHECK(d.find(NodeId{3})->to_keep().state == MemberState::failed);
  CHECK(d.find(NodeId{4})->to_keep().state == MemberState::left);
}

TEST_CASE("a verdict reached alone is doubted once, and again only after a word of the member") {
  Directory d = directory();
  (void)d.merge(record(2, 1, 1), start);
  CHECK(d.set_failed(NodeId{2}, true, start));
  d.doubt_lonely_verdicts(start);
  CHECK(d.set_failed(NodeId{2}, true, start));
  d.doubt_lonely_verdicts(start);
  CHECK(d.find(NodeId{2})->record.state == MemberState::failed);
  CHECK(d.merge(record(2, 2, 1), start) == Directory::Outcome::revived);
  CHECK(d.set_failed(NodeId{2}, true, start));
  d.doubt_lonely_verdicts(start);
  CHECK(d.find(NodeId{2})->record.state == MemberState::alive);
}

TEST_CASE(
    "a node learns from others how many samples it has trained, also of the incarnation that it "
    "uses") {
  Directory d = directory();
  const MemberRecord self = d.self();
  CHECK(d.merge(record(raw(self.id), self.incarnation, self.tick, MemberState::alive,
                       self.samples + 5000),
                start) == Directory::Outcome::recovered);
  CHECK(d.self().samples == self.samples + 5000);
  CHECK(d.merge(record(raw(self.id), self.incarnation, self.tick, MemberState::alive,
                       self.samples + 5000),
                start) == Directory::Outcome::unchanged);
}

TEST_CASE("any order of the same claims ends in the same belief") {
  std::vector<MemberRecord> claims;
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t incarnation = 1 + random.below(3);
    const std::uint64_t tick = random.below(20);
    // What a node says of itself is one story: the same tick of an incarnation says the same.
    claims.push_back(record(2 + random.below(4), incarnation, tick,
                            random.below(8) == 0 ? MemberState::failed : MemberState::alive,
                            incarnation * 1000 + tick));
  }
  const auto belief = [&](std::uint64_t seed) {
    Random order(seed);
    std::vector<MemberRecord> shuffled = claims;
    for (std::size_t i = shuffled.size(); i > 1; --i)
      std::swap(shuffled[i - 1], shuffled[order.below(i)]);
    Directory d = directory();
    for (const MemberRecord& claim : shuffled) (void)d.merge(claim, start);
    std::string text;
    for (const auto& [id, entry] : d.entries())
      text += to_hex(id) + ' ' + std::to_string(entry.record.incarnation) + ' ' +
              std::to_string(entry.record.tick) + ' ' + to_string(entry.record.state) + ' ' +
              std::to_string(entry.record.samples) + '\n';
    return text;
  };
  const std::string first = belief(1);
  for (std::uint64_t seed = 2; seed < 200; ++seed) REQUIRE(belief(seed) == first);
}

TEST_CASE(
    "news that a link has not been told is told once, oldest first, and not to whom it came from") {
  Directory d = directory();
  for (std::uint64_t id = 2; id < 300; ++id)
    (void)d.merge(record(id, 1, 1), start, SessionId{id % 2 + 1});
  std::uint64_t since = 0;
  std::size_t told = 0;
  while (true) {
    const auto records = d.news_since(since, SessionId{1}, 40);
    if (records.empty()) break;
    CHECK(records.size() <= 40);
    told += records.size();
  }
  CHECK(told == 1 + 149);
  (void)d.merge(stats_of(record(17, 1, 2)), start, SessionId{2});
  CHECK(d.news_since(since, SessionId{1}, 40).empty());
  (void)d.merge(record(17, 2, 1), start, SessionId{2});
  CHECK(d.news_since(since, SessionId{1}, 40).size() == 1);
}

TEST_CASE("a peer that reports a change but knows less otherwise is told the rest") {
  const SessionId teller{7}, other{8};
  const auto told = [&](const Directory& d, Directory::Sweep& sweep, SessionId to) {
    for (const MemberStats& f : d.next_stats(sweep, to, 10, start))
      if (f.id == NodeId{2}) return f.samples;
    return Samples{0};
  };
  Directory d = directory();
  (void)d.merge(record(2, 1, 9, MemberState::alive, 4224), start, other);
  // It has seen the member die, and has not heard of its last samples.
  CHECK(d.merge(record(2, 1, 8, MemberState::failed, 4064), start, teller) ==
        Directory::Outcome::failed);
  Directory::Sweep sweep;
  CHECK(told(d, sweep, teller) == 4224);
  // Newer stats, fewer samples: a restart from an old disk.
  Directory e = directory();
  (void)e.merge(record(2, 1, 9, MemberState::alive, 500), start, other);
  (void)e.merge(stats_of(record(2, 1, 10, MemberState::alive, 300)), start, teller);
  Directory::Sweep fresh;
  CHECK(told(e, fresh, teller) == 500);
  // A member that knows all of it is not told.
  Directory f = directory();
  (void)f.merge(record(2, 1, 9, MemberState::alive, 500), start, teller);
  Directory::Sweep silent;
  CHECK(told(f, silent, teller) == 0);
}

TEST_CASE("news that a link has not been told yet is told also when newer stats came from there") {
  Directory d = directory();
  std::uint64_t since = d.news();
  (void)d.merge(record(2, 1, 1), start, SessionId{8});
  (void)d.merge(stats_of(record(2, 1, 2)), start, SessionId{7});
  CHECK(d.news_since(since, SessionId{7}, 40).size() == 1);
}

TEST_CASE(
    "figures are told a few at a time, all of them come through while they change, and then there "
    "is silence") {
  Directory d = directory();
  for (std::uint64_t id = 2; id < 400; ++id) (void)d.merge(record(id, 1, 1), start);
  Directory::Sweep sweep;
  std::map<NodeId, std::uint64_t> told;
  const auto hear = [&] {
    const auto stats = d.next_stats(sweep, SessionId{1}, 5, start);
    CHECK(stats.size() <= 5);
    for (const MemberStats& f : stats) told[f.id] = f.tick;
    return stats.size();
  };
  // All change all the time, one after the other.
  for (std::uint64_t round = 0; round < 200; ++round) {
    for (std::uint64_t id = 2 + round % 2; id < 400; id += 2)
      (void)d.merge(stats_of(record(id, 1, 2 + round)), start, SessionId{2});
    (void)hear();
  }
  CHECK(told.size() == 399);
  std::size_t calls = 0;
  for (std::size_t quiet = 0; quiet < 4 && calls < 1000; ++calls)
    quiet = hear() == 0 ? quiet + 1 : 0;
  CHECK(calls < 1000);
  for (const auto& [id, tick] : told) CHECK(tick == d.find(id)->record.tick);
}

TEST_CASE("two directories that differ in one record of a thousand tell few of each other's") {
  Directory a = directory(), b = directory();
  for (std::uint64_t id = 2; id < 1000; ++id)
    (void)a.merge(record(id, 1, 1), start), (void)b.merge(record(id, 1, 1), start);
  CHECK(a.differing(b.digest()).empty());
  (void)a.merge(record(77, 2, 1), start);
  const auto records = a.differing(b.digest());
  CHECK(records.size() < 50);
  for (const MemberRecord& r : records) (void)b.merge(r, start);
  CHECK(a.digest() == b.digest());
  Directory empty(NodeId{5000});
  empty.set_self(record(5000, 1, 1), true, start);
  CHECK(a.differing(empty.digest()).size() == a.entries().size());
  CHECK(a.differing({}).empty());
}

TEST_CASE(
    "a directory that is full keeps who was heard of last, counts everybody once, and hands no "
    "newcomer on") {
  Directory d(NodeId{1}, 4);
  d.set_self(record(1, 5, 1, MemberState::alive, 100), true, start);
  for (std::uint64_t id = 2; id <= 4; ++id)
    (void)d.merge(record(id, 1, 1, MemberState::alive, 10 * id), start + id * 1s);
  CHECK(d.others_samples() == 90);
  const std::uint64_t news = d.news();
  // all have just been heard of
  CHECK(d.merge(record(5, 1, 1, MemberState::alive, 50), start + 3900ms) ==
        Directory::Outcome::unchanged);
  d.heard_from(NodeId{2}, start + 45s);
  CHECK(d.merge(record(5, 1, 1, MemberState::alive, 50), start + 50s) ==
        Directory::Outcome::joined);
  CHECK(d.find(NodeId{3}) == nullptr);
  CHECK(d.find(NodeId{2}) != nullptr);
  CHECK(d.news() == news);
  CHECK(d.others_samples() == 140);
  CHECK(d.alive_others() == 3);
  // It comes back knowing less than it had said.
  CHECK(d.merge(record(3, 2, 1, MemberState::alive, 5), start + 60s) == Directory::Outcome::joined);
  CHECK(d.find(NodeId{3})->record.samples == 30);
  CHECK(d.others_samples() == 140);
}

TEST_CASE(
    "what members have probably trained on since they said so goes by their speed and the age of "
    "their word") {
  Directory d = directory();
  MemberRecord r = record(2, 1, 1, MemberState::alive, 1000);
  r.phase = Phase::training;
  r.samples_per_second = 50;
  (void)d.merge(r, start);
  CHECK(d.samples_since(start + 9s, {}) == 450);
  CHECK(d.samples_since(start + 50s, {}) == 1000);  // no more than has been counted of it
  MemberStats f = stats_of(r);
  f.tick = 2;
  f.samples = 1500;
  f.age_seconds = 15;  // it took so long to come here
  (void)d.merge(f, start + 25s, SessionId{1});
  CHECK(d.others_samples() == 1500);
  CHECK(d.samples_since(start + 25s, {}) == 750);
  CHECK(d.samples_since(start + 26s, {}) == 800);
  CHECK(d.samples_since(start + 26s, {.rate_max = 10}) == 160);
  d.forgive(100s, start + 125s);
  CHECK(d.samples_since(start + 125s, {}) == 750);
  (void)d.accuse(NodeId{2}, start);
  CHECK(d.samples_since(start + 125s, {}) == 0);
}

TEST_CASE("a member is counted as far as this node, whatever has been counted of it") {
  Directory d = directory();
  d.expect(NodeId{300});
  MemberRecord r = record(300, 1, 1, MemberState::alive, 0);
  r.phase = Phase::training;
  (void)d.merge(r, start);
  const Directory::Estimator by{.own_rate = 100, .own = 150};
  CHECK(d.samples_since(start + 2s, by) == 0);  // it may not have made a step yet
  r.tick = 2;
  r.samples_per_second = 100;
  r.samples = 10;
  (void)d.merge(r, start + 100ms);
  CHECK(d.samples_since(start + 1100ms, by) == 100);
  CHECK(d.samples_since(start + 9s, by) == 150);
  r.tick = 3;
  r.batch = 8;
  r.samples = 16;
  (void)d.merge(r, start + 200ms);
  CHECK(d.samples_since(start + 290ms, by) == 8);  // whole steps
}

TEST_CASE("beyond their counts all members that were never met count little") {
  Directory d = directory();
  for (std::uint64_t id = 2; id < 202; ++id) {
    MemberRecord r = record(id, 1, 1, MemberState::alive, 0);
    r.phase = Phase::training;
    r.samples_per_second = 100;
    (void)d.merge(r, start);
  }
  const Directory::Estimator by{.own_rate = 100, .own = 100'000};
  CHECK(d.samples_since(start + 5s, by) == 1000);  // as this node in 10 s, not 200 times 500
  d.expect(NodeId{300});
  MemberRecord met = record(300, 1, 1, MemberState::alive, 0);
  met.phase = Phase::training;
  met.samples_per_second = 100;
  (void)d.merge(met, start);
  CHECK(d.samples_since(start + 5s, by) == 500 + 2 * 1000);
}

TEST_CASE("a member whose words show less than its speed is counted by the pace of its words") {
  Directory d = directory();
  MemberRecord r = record(2, 1, 1, MemberState::alive, 1000);
  r.phase = Phase::training;
  r.samples_per_second = 100;
  (void)d.merge(r, start);
  MemberStats f = stats_of(r);
  const auto say = [&](Samples samples, Instant now) {
    ++f.tick;
    f.samples = samples;
    (void)d.merge(f, now, SessionId{1});
  };
  say(1040, start + 1s);
  CHECK(d.samples_since(start + 2s, {}) == 40);
  say(1040, start + 2s);  // it writes a checkpoint
  CHECK(d.samples_since(start + 3s, {}) == 40);
  say(1300, start + 3s);  // 130 a second since its last progress
  CHECK(d.samples_since(start + 4s, {}) == 62);
  say(2300, start + 4s);  // several steps at once: no more than the speed of its steps
  CHECK(d.samples_since(start + 5s, {}) == 100);
  say(2310, start + 4s + 1ms);  // too near to show anything
  CHECK(d.samples_since(start + 5s + 1ms, {}) == 100);
}

TEST_CASE("a member that is met has a place in a directory full of invented ones, for good") {
  constexpr std::size_t most = 8;
  Directory directory(NodeId{1}, most);
  const Instant begin{};
  MemberRecord self;
  self.id = NodeId{1};
  directory.set_self(self, true, begin);
  const auto record = [](std::uint64_t id) {
    MemberRecord r;
    r.id = NodeId{id};
    r.name = "n";
    r.samples = 1;
    return r;
  };
  Instant now = begin;
  std::uint64_t next = 100;
  const auto flood = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      now += std::chrono::seconds(3);
      (void)directory.merge(record(next++), now);
    }
  };
  flood(50);
  directory.expect(NodeId{2});
  CHECK(directory.merge(record(2), now) == Directory::Outcome::joined);
  directory.heard_from(NodeId{2}, now);
  flood(70'000);
  CHECK(directory.find(NodeId{2}) != nullptr);
  CHECK(directory.entries().size() == most);
  directory.expect(NodeId{3});
  CHECK(directory.merge(record(3), now) == Directory::Outcome::joined);
  CHECK(directory.find(NodeId{2}) != nullptr);
}
