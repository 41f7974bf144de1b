// Who comes next in the circle of all members.
#include <doctest/doctest.h>

#include <set>

#include "core/base/random.h"
#include "core/membership/circle.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

const Instant start{100s};

MemberRecord member(std::uint64_t id, Phase phase = Phase::training) {
  MemberRecord record;
  record.id = NodeId{id};
  record.name = "node";
  record.incarnation = record.tick = record.news = 1;
  record.phase = phase;
  return record;
}

struct Circle {
  explicit Circle(std::uint64_t self) : directory(NodeId{self}) {
    directory.set_self(member(self), true, start);
  }
  void add(const MemberRecord& record) { (void)directory.merge(record, start); }
  [[nodiscard]] std::uint64_t after(std::uint64_t id) const {
    return raw(next_in_circle(directory, NodeId{id}));
  }
  Directory directory;
};

}  // namespace

TEST_CASE("the next in the circle is the next id, and after the last comes the first") {
  Circle circle(20);
  CHECK(circle.after(20) == 0);  // alone
  for (const std::uint64_t id : {10u, 30u, 40u}) circle.add(member(id));
  CHECK(circle.after(20) == 30);
  CHECK(circle.after(30) == 40);
  CHECK(circle.after(40) == 10);
  CHECK(circle.after(25) == 30);  // not a member
}

TEST_CASE("who is dead, joins or is not reached has no place in the circle") {
  Circle circle(1);
  MemberRecord dead = member(2), unreached = member(4), mistyped = member(5);
  dead.state = MemberState::failed;
  unreached.reachability = Reachability::dials_out;
  mistyped.reachability = Reachability::address_silent;
  for (const MemberRecord& record :
       {dead, member(3, Phase::syncing), unreached, mistyped, member(6)})
    circle.add(record);
  CHECK(circle.after(1) == 6);
  for (const std::uint64_t id : {2u, 3u, 4u, 5u}) {
    CAPTURE(id);
    CHECK(circle.after(id) == 6);
    CHECK_FALSE(beside_in_circle(circle.directory, NodeId{1}, NodeId{id}));
  }
  CHECK(beside_in_circle(circle.directory, NodeId{1}, NodeId{6}));
}

TEST_CASE("from next to next the circle leads through all members, and each is beside two") {
  Random random(7);
  Circle circle(random.next());
  for (int i = 0; i < 40; ++i) circle.add(member(random.next()));
  const NodeId self = circle.directory.self().id;
  std::set<NodeId> seen;
  for (NodeId at = self; seen.insert(at).second;) at = next_in_circle(circle.directory, at);
  CHECK(seen.size() == 41);
  std::size_t beside = 0;
  for (const NodeId id : seen) beside += beside_in_circle(circle.directory, self, id) ? 1 : 0;
  CHECK(beside == 2);
}
