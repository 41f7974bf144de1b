// What a node believes of the others, whatever order the gossip comes in.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/random.h"
#include "core/membership/directory.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

const Instant start{100s};

MemberRecord record(std::uint64_t id, std::uint64_t incarnation, std::uint64_t tick, MemberState state = MemberState::alive, Samples samples = 0) {
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
  d.set_self(record(1, 5, 1, MemberState::alive, 100), start);
  return d;
}

}  // namespace

TEST_CASE("a higher incarnation replaces, a later state of the same one wins, and samples never fall") {
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

TEST_CASE("a node that is held to have failed is told to refute, and one that forgot samples gets them back") {
  Directory d = directory();
  CHECK(d.merge(record(1, 5, 1, MemberState::failed), start) == Directory::Outcome::accused);
  CHECK(d.merge(record(1, 4, 9, MemberState::failed), start) == Directory::Outcome::unchanged);
  CHECK(d.merge(record(1, 4, 9, MemberState::alive, 5000), start) == Directory::Outcome::recovered);
  CHECK(d.self().samples == 5000);
}

TEST_CASE("suspicion is our own and does not travel") {
  Directory d = directory();
  (void)d.merge(record(2, 1, 1), start);
  CHECK(d.set_suspect(NodeId{2}, true));
  CHECK_FALSE(d.set_suspect(NodeId{2}, true));
  std::uint64_t since = 0;
  for (const MemberRecord& r : d.changed_since(since)) CHECK(r.state == MemberState::alive);
  d.heard_from(NodeId{2}, start + 1s);
  CHECK_FALSE(d.find(NodeId{2})->suspect);
}

TEST_CASE("any order of the same claims ends in the same belief") {
  std::vector<MemberRecord> claims;
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t incarnation = 1 + random.below(3);
    const std::uint64_t tick = random.below(20);
    // What a node says of itself is one story: the same tick of an incarnation says the same.
    claims.push_back(record(2 + random.below(4), incarnation, tick, random.below(8) == 0 ? MemberState::failed : MemberState::alive,
                            incarnation * 1000 + tick));
  }
  const auto belief = [&](std::uint64_t seed) {
    Random order(seed);
    std::vector<MemberRecord> shuffled = claims;
    for (std::size_t i = shuffled.size(); i > 1; --i) std::swap(shuffled[i - 1], shuffled[order.below(i)]);
    Directory d = directory();
    for (const MemberRecord& claim : shuffled) (void)d.merge(claim, start);
    std::string text;
    for (const auto& [id, entry] : d.entries())
      text += to_hex(id) + ' ' + std::to_string(entry.record.incarnation) + ' ' + std::to_string(entry.record.tick) + ' ' +
              to_string(entry.record.state) + ' ' + std::to_string(entry.record.samples) + '\n';
    return text;
  };
  const std::string first = belief(1);
  for (std::uint64_t seed = 2; seed < 200; ++seed) REQUIRE(belief(seed) == first);
}

TEST_CASE("what a peer has not seen yet is sent once, oldest change first") {
  Directory d = directory();
  for (std::uint64_t id = 2; id < 300; ++id) (void)d.merge(record(id, 1, 1), start);
  std::uint64_t since = 0;
  std::size_t sent = 0;
  while (true) {
    const auto records = d.changed_since(since);
    if (records.empty()) break;
    CHECK(records.size() <= 200);
    sent += records.size();
  }
  CHECK(sent == 299);
  (void)d.merge(record(17, 1, 2), start);
  CHECK(d.changed_since(since).size() == 1);
}
