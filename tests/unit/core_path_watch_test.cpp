// A path that carries small packets and swallows large ones, told from peers that are slow, cut off
// or dead.
#include <doctest/doctest.h>

#include "core/node/path_watch.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

Instant at(std::chrono::milliseconds time) { return Instant(time); }

// From `begin` a session on which an answer comes back, something large is sent, and then all is
// silent for `silence`.
void lose_large(PathWatch& path, std::chrono::milliseconds begin,
                std::chrono::milliseconds silence = 10s) {
  path.on_answer(at(begin));
  path.on_large_sent(at(begin + 100ms));
  path.on_answer(at(begin + 50ms));  // to a ping from before: it proves nothing
  path.on_session_end(at(begin + 100ms + silence));
}

}  // namespace

TEST_CASE(
    "two sessions in a row that fall silent after something large name the path once the peer "
    "answers again") {
  PathWatch path;
  lose_large(path, 0s);
  lose_large(path, 11s);
  CHECK(!path.found_out(at(23s)));  // nobody answers: the peer may be dead
  path.on_answer(at(23s));
  CHECK(path.found_out(at(23s)));
  CHECK(!path.found_out(at(24s)));  // said once
  CHECK(path.swallows_large());
}

TEST_CASE("it takes twenty seconds and two sessions") {
  PathWatch path;
  lose_large(path, 0s, 4s);
  lose_large(path, 5s, 4s);
  path.on_answer(at(10s));
  CHECK(!path.found_out(at(20s)));
  CHECK(path.found_out(at(21s)));
  PathWatch once;
  lose_large(once, 0s, 30s);
  once.on_answer(at(31s));
  CHECK(!once.found_out(at(100s)));
}

TEST_CASE("a late arrival clears the path, also after it was reported") {
  PathWatch path;
  lose_large(path, 0s);
  lose_large(path, 11s);
  path.on_answer(at(23s));
  path.on_large_sent(at(24s));
  REQUIRE(path.found_out(at(24s)));
  path.on_answer(at(25s));
  CHECK(!path.swallows_large());
  path.on_session_end(at(60s));
  lose_large(path, 61s);
  path.on_answer(at(100s));
  CHECK(!path.found_out(at(100s)));  // one alone, again
}

TEST_CASE("sessions that are cut soon after something large was sent say nothing about sizes") {
  PathWatch path;
  for (int i = 0; i < 100; ++i) lose_large(path, i * 1s, 500ms);
  path.on_answer(at(200s));
  CHECK(!path.found_out(at(200s)));
}

TEST_CASE("a peer that never answers is not a bad path") {
  PathWatch path;
  for (int i = 0; i < 100; ++i) {
    path.on_large_sent(at(i * 10s));
    path.on_session_end(at(i * 10s + 9s));
  }
  CHECK(!path.found_out(at(2000s)));
}
