// When a state is written, and what a restart finds in it.
#include <doctest/doctest.h>

#include "core/membership/sample_credit.h"
#include "core/node/persistence.h"

using namespace gossipd;

namespace {

const Instant start = Instant{} + std::chrono::hours(1);
constexpr Duration second = std::chrono::seconds(1);

}  // namespace

TEST_CASE("a state is written when that was asked for, and every period without a word") {
  Persistence persistence(start, {}, {});
  CHECK(persistence.is_due(start));
  (void)persistence.to_write({}, Directory(NodeId{1}), start);
  CHECK_FALSE(persistence.is_due(start + second));
  persistence.request();
  CHECK(persistence.is_due(start + second));
  (void)persistence.to_write({}, Directory(NodeId{1}), start + second);
  CHECK_FALSE(persistence.is_due(start + second));
  CHECK(persistence.is_due(start + second + Persistence::period));
}

TEST_CASE("a request lasts until a state is written") {
  Persistence persistence(start, {}, {});
  persistence.request();
  CHECK(persistence.is_due(start));
  CHECK(persistence.is_due(start));
}

TEST_CASE("a state holds all members but this node") {
  Directory directory(NodeId{1});
  for (const NodeId id : {NodeId{1}, NodeId{2}, NodeId{3}}) {
    MemberRecord record;
    record.id = id;
    record.incarnation = 1;
    if (id == NodeId{1})
      directory.set_self(std::move(record), true, start);
    else
      (void)directory.merge(record, start);
  }
  NodeState state;
  state.id = NodeId{1};
  const NodeState written = Persistence(start, {}, {}).to_write(state, directory, start);
  REQUIRE(written.members.size() == 2);
  CHECK(written.members[0].id == NodeId{2});
  CHECK(written.members[1].id == NodeId{3});
}

TEST_CASE("a node that dies soon after its start is as unsure as before, and of the gap as well") {
  Persistence persistence(start, 10 * second, 5 * second);
  const Directory directory(NodeId{1});
  const Duration before_end = SampleCredit::reserve - second;
  CHECK(persistence.to_write({}, directory, start + before_end).unsure_for == 15 * second);
  CHECK(persistence.to_write({}, directory, start + SampleCredit::reserve).unsure_for ==
        Duration{});
}

TEST_CASE("of members that were never met a bounded number is written, of those met all") {
  Directory directory(NodeId{1});
  const auto add = [&](std::uint64_t id, bool met) {
    MemberRecord record;
    record.id = NodeId{id};
    record.incarnation = 1;
    (void)directory.merge(record, start);
    if (met) directory.heard_from(record.id, start);
  };
  for (std::uint64_t id = 2; id < 802; ++id) add(id, false);
  for (std::uint64_t id = 802; id < 812; ++id) add(id, true);
  directory.recall_met(NodeId{500});  // in an earlier run
  NodeState state;
  state.id = NodeId{1};
  const NodeState written = Persistence(start, {}, {}).to_write(state, directory, start);
  CHECK(written.members.size() == Persistence::unmet_max + 11);
  CHECK(written.met.size() == 11);
  CHECK(written.met.contains(NodeId{500}));
  for (std::size_t i = 0; i < 11; ++i) CHECK(written.met.contains(written.members[i].id));
}
