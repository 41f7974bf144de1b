// Two processes under one id: what others tell them, and which one gives the id up.
#include "core/node/clone_watch.h"

#include <doctest/doctest.h>

using namespace gossipd;
using Heard = Instances::Heard;
using Verdict = CloneWatch::Verdict;

namespace {

constexpr NodeId own{1}, peer{2};
constexpr std::uint64_t earlier = 5, later = 9;
const Endpoint here{"here", 1}, there{"there", 1};

Hello hello(NodeId id, std::uint64_t instance) {
  return {.id = id, .address = here, .instance = instance};
}

Cloned notice(std::uint64_t keeps, std::uint64_t gives_up) {
  return {.id = own, .keeps = keeps, .gives_up = gives_up, .keeper = here, .other = there};
}

}  // namespace

TEST_CASE("of two living processes the one that started earlier keeps the id, and both are told") {
  CloneWatch watch(own, 1, NodeId{}, Instant{});
  CHECK(watch.hear(hello(peer, earlier)) == Heard::alone);
  CHECK(watch.hear(hello(peer, later)) == Heard::alone);  // a restart
  CHECK_FALSE(watch.is_cloned(peer, Instant{}));
  CHECK(watch.hear(hello(peer, earlier)) == Heard::again);
  const auto proof = watch.on_proof_of_life(hello(peer, earlier), here, there);
  CHECK(proof.two);
  CHECK(proof.keeps);
  CHECK(proof.notice.keeps == earlier);
  CHECK(proof.notice.gives_up == later);
  CHECK(proof.notice.keeper == here);
  CHECK(proof.notice.other == there);
  CHECK(watch.is_cloned(peer, Instant{}));
  CHECK(watch.hear(hello(peer, later)) == Heard::outlived);
  const Cloned outlived = watch.outlived(hello(peer, later), there);
  CHECK(outlived.keeps == earlier);
  CHECK(outlived.gives_up == later);
  CHECK(outlived.keeper == there);
}

TEST_CASE("the rival's address comes from its former records where it has no link") {
  CloneWatch watch(own, 1, NodeId{}, Instant{});
  CHECK_FALSE(watch.moved(peer, there, here));
  CHECK(watch.moved(peer, here, there));
  (void)watch.hear(hello(peer, earlier));
  (void)watch.hear(hello(peer, later));
  CHECK(watch.on_proof_of_life(hello(peer, earlier), here, Endpoint{}).notice.other == there);
}

TEST_CASE("two processes of this node's id that meet agree on the one that keeps it") {
  const CloneWatch first(own, earlier, NodeId{}, Instant{}),
      second(own, later, NodeId{}, Instant{});
  const Cloned by_first = first.meet(hello(own, later), here, there);
  const Cloned by_second = second.meet(hello(own, earlier), there, here);
  CHECK(by_first.keeps == earlier);
  CHECK(by_second.keeps == earlier);
  CHECK(by_first.keeper == here);
  CHECK(by_second.keeper == here);
}

TEST_CASE("one member among several does not take another's id away, two do") {
  CloneWatch watch(own, later, NodeId{}, Instant{});
  CHECK(watch.on_notice(notice(earlier, later), NodeId{7}, {3, 1}, Instant{}) == Verdict::nothing);
  CHECK(watch.on_notice(notice(earlier, later), NodeId{7}, {3, 1}, Instant{}) == Verdict::nothing);
  CHECK(watch.on_notice(notice(earlier, later), NodeId{8}, {3, 1}, Instant{}) == Verdict::gives_up);
  CloneWatch alone(own, later, NodeId{}, Instant{});
  CHECK(alone.on_notice(notice(earlier, later), NodeId{7}, {1, 1}, Instant{}) == Verdict::gives_up);
  CloneWatch other(own, 100, NodeId{}, Instant{});  // of neither instance
  CHECK(other.on_notice(notice(earlier, later), NodeId{7}, {1, 1}, Instant{}) == Verdict::nothing);
}

TEST_CASE("one member that goes on saying so for a minute is believed, if no other is linked") {
  CloneWatch watch(own, later, NodeId{}, Instant{});
  const auto say = [&](std::size_t linked, int second) {
    return watch.on_notice(notice(earlier, later), NodeId{7}, {.alive = 2, .linked = linked},
                           Instant{} + std::chrono::seconds(second));
  };
  CHECK(say(0, 0) == Verdict::nothing);
  CHECK(say(0, 59) == Verdict::nothing);
  CHECK(say(1, 61) == Verdict::nothing);
  CHECK(say(0, 70) == Verdict::nothing);
  CHECK(say(0, 129) == Verdict::nothing);
  CHECK(say(0, 130) == Verdict::gives_up);
}

TEST_CASE("the process that keeps its id says so once, and its view shows it") {
  CloneWatch watch(own, earlier, NodeId{}, Instant{});
  CHECK_FALSE(watch.is_cloned(own, Instant{}));
  CHECK(watch.on_notice(notice(earlier, later), peer, {1, 1}, Instant{}) == Verdict::keeps);
  CHECK(watch.on_notice(notice(earlier, later), peer, {1, 1}, Instant{}) == Verdict::nothing);
  CHECK(watch.is_cloned(own, Instant{}));
  CHECK(watch.words().find("there") != std::string::npos);
  const Instant again = Instant{} + std::chrono::minutes(5);
  CHECK(watch.on_notice(notice(earlier, later), peer, {1, 1}, again) == Verdict::nothing);
  CHECK(watch.is_cloned(own, again + CloneWatch::shown_for - std::chrono::seconds(1)));
  CHECK_FALSE(watch.is_cloned(own, again + CloneWatch::shown_for));  // by then it is over
}

TEST_CASE("a process that gave its former id up says so, and is no clone any more") {
  const CloneWatch watch(own, later, NodeId{9}, Instant{});
  CHECK(watch.words().find(to_hex(NodeId{9})) != std::string::npos);
  CHECK_FALSE(watch.is_cloned(own, Instant{}));
}

TEST_CASE("an id that was taken up a moment ago is kept: the other process may be invented") {
  const Instant start{};
  CHECK(CloneWatch(own, later, NodeId{}, start).may_change_id(start));
  const CloneWatch again(own, later, NodeId{9}, start);
  CHECK_FALSE(again.may_change_id(start));
  CHECK_FALSE(again.may_change_id(start + CloneWatch::between_ids - std::chrono::seconds(1)));
  CHECK(again.may_change_id(start + CloneWatch::between_ids));
}
