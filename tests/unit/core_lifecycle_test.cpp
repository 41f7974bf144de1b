// The phases of a node: which follow which, and what lasts as long as one of them.
#include <doctest/doctest.h>

#include "core/node/lifecycle.h"

using namespace gossipd;

namespace {

Instant at(double s) { return Instant{} + from_seconds(s); }

Lifecycle in(std::initializer_list<Phase> way) {
  Lifecycle life(false);
  for (const Phase phase : way) REQUIRE(life.enter(phase));
  return life;
}

constexpr Phase all[] = {Phase::joining,   Phase::waiting_for_data, Phase::preparing,
                         Phase::syncing,   Phase::training,         Phase::paused,
                         Phase::finishing, Phase::finished,         Phase::leaving,
                         Phase::left,      Phase::broken,           Phase::waiting_for_trainer};
static_assert(std::size(all) == phase_count);

}  // namespace

TEST_CASE("a node starts out joining, or as one that has left") {
  CHECK(Lifecycle(false).phase() == Phase::joining);
  CHECK(Lifecycle(true).phase() == Phase::left);
}

TEST_CASE("no phase leads to itself") {
  for (const Phase phase : all) CHECK_FALSE(Lifecycle::allows(phase, phase));
}

TEST_CASE("a node can be told to leave in every phase, and nothing else undoes that") {
  for (const Phase phase : all) {
    if (phase != Phase::leaving && phase != Phase::left)
      CHECK(Lifecycle::allows(phase, Phase::leaving));
    if (phase != Phase::left) CHECK_FALSE(Lifecycle::allows(Phase::leaving, phase));
    if (phase != Phase::joining) CHECK_FALSE(Lifecycle::allows(Phase::left, phase));
  }
}

TEST_CASE("only a node that trained, paused or waited for its trainer comes to the job's end") {
  for (const Phase phase : all)
    CHECK(Lifecycle::allows(phase, Phase::finishing) ==
          (Lifecycle::is_stepping_or_idle(phase) || phase == Phase::finished));
}

TEST_CASE("a transition that there is not changes nothing") {
  Lifecycle life = in({Phase::training});
  CHECK_FALSE(life.enter(Phase::finished));
  CHECK_FALSE(life.enter(Phase::training));
  CHECK(life.is_training());
}

TEST_CASE("a leave is said when each link has had one more turn, or when time is up") {
  Lifecycle life = in({Phase::training, Phase::leaving});
  CHECK(life.is_going());
  life.leave_by(at(3), {{NodeId{1}, 5}, {NodeId{2}, 7}});
  const auto all_at = [](std::uint64_t spoken) {
    return [spoken](NodeId, std::uint64_t turns) { return spoken > turns; };
  };
  CHECK_FALSE(life.has_said_all(all_at(6)));
  CHECK(life.has_said_all(all_at(8)));
  CHECK_FALSE(life.is_overdue(at(2)));
  CHECK(life.is_overdue(at(3)));
}

TEST_CASE("a node without links has said all it has to say") {
  Lifecycle life = in({Phase::leaving});
  life.leave_by(at(3), {});
  CHECK(life.has_said_all([](NodeId, std::uint64_t) { return false; }));
}

TEST_CASE("a node with a model looks for the others until it is told to stop looking") {
  Lifecycle life(false);
  life.look_until(at(8));
  CHECK_FALSE(life.has_looked(at(7)));
  CHECK(life.has_looked(at(8)));
}
