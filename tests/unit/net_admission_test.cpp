// Places for waiting connections, and which connection gives up its own.
#include <doctest/doctest.h>

#include <set>

#include "net/addresses.h"
#include "net/peer/admission.h"

using namespace gossipd;

namespace {

using Stage = Admission::Stage;
constexpr Admission::Limits few{.places_max = 4, .places_per_source_max = 4, .members_max = 2};

Source host(std::uint64_t number) { return Source{false, number}; }

// Numbers newcomers and remembers those still present.
struct Door {
  Admission admission;
  std::uint64_t last = 0;
  std::set<SessionId> waiting;

  explicit Door(const Admission::Limits& limits = few) : admission(limits) {}

  SessionId enter(const Source& source, Stage stage = Stage::silent) {
    const SessionId id{++last};
    if (const auto gone = admission.enter(id, source)) CHECK(waiting.erase(*gone) == 1);
    waiting.insert(id);
    admission.advance(id, stage);
    CHECK(admission.waiting() == waiting.size());
    return id;
  }
};

}  // namespace

TEST_CASE("a newcomer always gets a place, and the oldest of equals makes room") {
  Door door;
  const SessionId first = door.enter(host(1));
  for (std::uint64_t other = 2; other <= 4; ++other) door.enter(host(other));
  CHECK(door.waiting.contains(first));
  const SessionId newcomer = door.enter(host(5));
  CHECK(!door.waiting.contains(first));
  CHECK(door.waiting.contains(newcomer));
}

TEST_CASE("of many from few sources, one of the largest crowd makes room") {
  Door door;
  const SessionId alone = door.enter(host(9));
  for (int i = 0; i < 1000; ++i) door.enter(host(static_cast<std::uint64_t>(i % 2)));
  CHECK(door.waiting.contains(alone));
}

TEST_CASE("connections that have spoken outlast silent ones, also from one source") {
  Door door;
  const SessionId joiner = door.enter(host(1), Stage::speaking);
  for (int i = 0; i < 1000; ++i) door.enter(host(1));
  CHECK(door.waiting.contains(joiner));
}

TEST_CASE(
    "a newcomer's first silent moment is not the weakest among those who have begun to speak") {
  Door door;
  for (std::uint64_t other = 1; other <= 4; ++other) door.enter(host(other), Stage::speaking);
  const SessionId joiner = door.enter(host(9));
  door.enter(host(10), Stage::speaking);
  CHECK(door.waiting.contains(joiner));
}

TEST_CASE("refused connections go before silent ones") {
  Door door;
  const SessionId silent = door.enter(host(1));
  const SessionId refused = door.enter(host(2), Stage::refused);
  door.enter(host(3));
  door.enter(host(4));
  door.enter(host(5));
  CHECK(!door.waiting.contains(refused));
  CHECK(door.waiting.contains(silent));
}

TEST_CASE("connections that have proved the key go last, however many share the source") {
  Door door;
  std::set<SessionId> proved;
  for (int i = 0; i < 3; ++i) proved.insert(door.enter(host(1), Stage::proved));
  for (std::uint64_t i = 0; i < 1000; ++i) door.enter(host(100 + i), Stage::speaking);
  for (const SessionId id : proved) CHECK(door.waiting.contains(id));
  // A crowd that replays one proof does not keep out the next one either.
  Door replayed;
  const SessionId oldest = replayed.enter(host(1), Stage::proved);
  for (int i = 0; i < 4; ++i) replayed.enter(host(1), Stage::proved);
  CHECK(!replayed.waiting.contains(oldest));
  CHECK(replayed.waiting.size() == 4);
}

TEST_CASE("one source has no more places than its share, and what it proved does not count") {
  Door door({.places_max = 100, .places_per_source_max = 2});
  const SessionId proved = door.enter(host(1), Stage::proved), other = door.enter(host(2));
  for (int i = 0; i < 10; ++i) door.enter(host(1));
  CHECK(door.waiting.contains(proved));
  CHECK(door.waiting.contains(other));
  CHECK(door.waiting.size() == 4);
}

TEST_CASE(
    "members' places are their own: no stranger takes one, and the one heard of longest ago is "
    "forgotten") {
  Door door;
  door.admission.know(host(1));
  const SessionId member = door.enter(host(1));
  for (std::uint64_t i = 0; i < 1000; ++i) door.enter(host(100 + i), Stage::speaking);
  CHECK(door.waiting.contains(member));
  CHECK(door.waiting.size() == 5);
  door.admission.know(host(2));
  door.admission.know(host(1));
  door.admission.know(host(3));  // of the two remembered, 2 is the older
  door.enter(host(1));
  CHECK(door.waiting.size() == 6);
  door.enter(host(2));
  CHECK(door.waiting.size() == 6);
}

TEST_CASE("for want of file descriptors the weakest goes") {
  Door door;
  CHECK(!door.admission.give_up_one());
  door.enter(host(1), Stage::speaking);
  const SessionId silent = door.enter(host(2));
  CHECK(door.admission.give_up_one() == silent);
  CHECK(door.admission.waiting() == 1);
}

TEST_CASE("a connection that lost its place may still move on or leave") {
  Door door;
  const SessionId gone = door.enter(host(1));
  for (int i = 0; i < 4; ++i) door.enter(host(1));
  door.admission.advance(gone, Stage::proved);
  door.admission.leave(gone);
  CHECK(door.admission.waiting() == 4);
}

TEST_CASE(
    "a source is an IPv4 address, mapped or not, or an IPv6 network of 64 bits; a name is none") {
  CHECK(source_of("10.0.0.1") == source_of("::ffff:10.0.0.1"));
  CHECK(source_of("10.0.0.1") != source_of("10.0.0.2"));
  CHECK(source_of("2001:db8:1:2::1") == source_of("2001:db8:1:2:ffff::99"));
  CHECK(source_of("2001:db8:1:2::1") != source_of("2001:db8:1:3::1"));
  CHECK(source_of("::1") != source_of("0.0.0.0"));
  CHECK(!source_of("box1"));
}
