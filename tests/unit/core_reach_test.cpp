#include "core/membership/reach.h"

#include <doctest/doctest.h>

using namespace gossipd;

namespace {

const Endpoint here{"10.0.0.1", 7610}, there{"10.0.0.2", 7610}, elsewhere{"10.0.0.3", 7610};
constexpr NodeId box2{2}, box3{3};

Instant at(int seconds) { return Instant(std::chrono::seconds(1000 + seconds)); }

}  // namespace

TEST_CASE("a member that dialled in is dialled back, one that was dialled is not") {
  Reach reach(here, false);
  CHECK(!reach.is_due(box2, at(0)));
  reach.on_linked(box2, there, false);
  CHECK(reach.is_due(box2, at(0)));
  CHECK(reach.finding(box2) == nullptr);
  reach.on_linked(box3, elsewhere, true);
  CHECK(!reach.is_due(box3, at(0)));
  REQUIRE(reach.finding(box3) != nullptr);
  CHECK(reach.finding(box3)->answers);
  REQUIRE(reach.take_untold(box3));
  CHECK(!reach.take_untold(box3));
}

TEST_CASE("a member is dialled back at most once a minute, whatever addresses it names") {
  Reach reach(here, false);
  reach.on_linked(box2, there, false);
  reach.on_dial(box2, at(0));
  for (int second = 0; second < 60; ++second) {
    reach.on_linked(box2, Endpoint{"10.9.9.9", static_cast<std::uint16_t>(second + 1)}, false);
    CHECK(!reach.is_due(box2, at(second)));
  }
  CHECK(reach.is_due(box2, at(60)));
}

TEST_CASE("what a dial found is told once, and again when it changes") {
  Reach reach(here, false);
  reach.on_linked(box2, there, false);
  reach.on_dial(box2, at(0));
  reach.on_found(there, NodeId{}, "refused");
  const auto silent = reach.take_untold(box2);
  REQUIRE(silent);
  CHECK(!silent->answers);
  CHECK(silent->reason == "refused");
  CHECK(silent->address == there);
  reach.on_found(there, NodeId{}, "refused");
  CHECK(!reach.take_untold(box2));
  CHECK(reach.is_due(box2, at(60)));
  reach.on_found(there, box2, "");
  REQUIRE(reach.take_untold(box2));
  CHECK(reach.finding(box2)->answers);
  CHECK(reach.finding(box2)->reason.empty());
  CHECK(!reach.is_due(box2, at(600)));
}

TEST_CASE("another node at the address is no answer, and other addresses say nothing") {
  Reach reach(here, false);
  reach.on_linked(box2, there, false);
  reach.on_found(elsewhere, box2, "");
  CHECK(reach.finding(box2) == nullptr);
  reach.on_found(there, box3, std::string(1000, 'x'));
  REQUIRE(reach.finding(box2) != nullptr);
  CHECK(!reach.finding(box2)->answers);
  CHECK(reach.finding(box2)->reason.size() == Reach::reason_bytes_max);
}

TEST_CASE("a node is reachable if anybody finds it, and else the address is to blame that it has") {
  for (const bool by_operator : {false, true}) {
    Reach reach(here, by_operator);
    CHECK(reach.own() == Reachability::unknown);
    CHECK(!reach.on_told(box2, {.address = there, .answers = false, .reason = "old"}));
    CHECK(reach.own() == Reachability::unknown);
    CHECK(reach.on_told(box2, {.address = here, .answers = false, .reason = "refused"}));
    CHECK(reach.own() == (by_operator ? Reachability::address_silent : Reachability::dials_out));
    CHECK(reach.why_not() == "refused");
    CHECK(!reachability_hint(reach.own(), here).empty());
    CHECK(!reach.on_told(box2, {.address = here, .answers = false, .reason = "refused"}));
    CHECK(reach.on_told(box3, {.address = here, .answers = true, .reason = ""}));
    CHECK(reach.own() == Reachability::reachable);
    CHECK(reach.why_not().empty());
    CHECK(reach.answers_to(box2) == false);
    CHECK(reach.answers_to(box3) == true);
    CHECK(reach.answers_to(NodeId{9}) == std::nullopt);
  }
}

TEST_CASE("invented members do not make it grow") {
  Reach reach(here, false);
  for (std::uint64_t id = 1; id < 3 * members_max; ++id) {
    reach.on_linked(NodeId{id}, there, false);
    reach.on_dial(NodeId{id}, at(static_cast<int>(id)));
    (void)reach.on_told(NodeId{id}, {.address = here, .answers = false, .reason = "x"});
    reach.check_invariants();
  }
}
