#include <doctest/doctest.h>

#include "core/membership/division_members.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

const Instant start{100s};

MemberRecord record(std::uint64_t id, MemberState state, Phase phase, std::uint32_t batch) {
  MemberRecord r;
  r.id = NodeId{id};
  r.incarnation = r.tick = r.news = 1;
  r.state = state;
  r.phase = phase;
  r.batch = batch;
  return r;
}

}  // namespace

TEST_CASE("a shared set is divided among those that train, a suspect with them, by id") {
  Directory directory(NodeId{95});
  // As last told: the node itself knows better.
  directory.set_self(record(95, MemberState::alive, Phase::syncing, 64), true, start);
  std::uint64_t id = 100;
  for (const auto& [state, phase, batch] :
       {std::tuple{MemberState::alive, Phase::training, 10u},
        std::tuple{MemberState::alive, Phase::finished, 11u},
        std::tuple{MemberState::failed, Phase::training, 12u},
        std::tuple{MemberState::left, Phase::training, 13u},
        std::tuple{MemberState::forgotten, Phase::training, 14u}})
    directory.merge(record(id--, state, phase, batch), start);
  directory.merge(record(94, MemberState::alive, Phase::paused, 15), start);
  directory.merge(record(93, MemberState::alive, Phase::training, 17), start);
  REQUIRE(directory.accuse(NodeId{100}, start));

  using Members = std::vector<DivisionMember>;
  CHECK(who_divides(directory, Phase::training) ==
        Members{{NodeId{93}, 17}, {NodeId{95}, 64}, {NodeId{99}, 11}, {NodeId{100}, 10}});
  CHECK(who_divides(directory, Phase::paused) ==
        Members{{NodeId{93}, 17}, {NodeId{99}, 11}, {NodeId{100}, 10}});
}
