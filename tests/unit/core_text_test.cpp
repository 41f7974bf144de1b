// Text from others: what reaches a terminal, and what reaches the log how often.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/base/log_ceiling.h"
#include "core/base/printable.h"
#include "core/node/refusals.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

Instant at(std::chrono::milliseconds time) { return Instant(time); }

std::size_t written(LogCeiling& ceiling, const std::string& words, std::size_t times, Instant now) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < times; ++i) count += ceiling.admits(words, now) ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("no control character, invisible character or broken byte gets through; all else does") {
  CHECK(printable("box-1 Zürich 東京 🙂") == "box-1 Zürich 東京 🙂");
  CHECK(printable("\x1b[31mred\x1b[0m") == "?[31mred?[0m");
  CHECK(printable("a\nb\r\tc\x7f") == "a?b??c?");
  CHECK(printable("a\nb\rc", Lines::many) == "a\nb?c");
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");  // U+009B, CSI in one character
  CHECK(printable("\x9b"
                  "31m") == "?31m");  // and as the byte that 8-bit terminals take for it
  CHECK(printable("a\xe2\x80\xae"
                  "b\xe2\x80\x8b"
                  "c") == "a?b?c");  // right-to-left override, zero-width space
  CHECK(printable("\xff\xc3(\xe2\x82") == std::string(2, '?') + "(" + std::string(2, '?'));
  CHECK(printable("\xc0\x8a\xed\xa0\x80\xf4\x90\x80\x80") ==
        std::string(9, '?'));  // overlong, half a pair, beyond Unicode
  CHECK(printable(std::string("a\0b", 3)) == "a?b");
}

TEST_CASE("UTF-8 is told from other bytes") {
  CHECK(is_utf8(""));
  CHECK(is_utf8("Zürich 🙂\x1b"));
  for (const char* bad :
       {"\xff", "caf\xe9", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80"})
    CHECK(!is_utf8(bad));
}

TEST_CASE("a name cannot pose as other words of a log line") {
  CHECK(log_word("x event=phase \"y\"") == "x_event_phase__y_");
}

TEST_CASE("of lines about others that are alike few are written, and the rest is told as a count") {
  LogCeiling ceiling;
  // Two probes in turn: each is a kind and address of its own, whatever its words.
  std::size_t lines = 0;
  for (int i = 0; i < 1000; ++i) {
    lines += written(
        ceiling,
        "event=turned-away peer=10.0.0.1 code=not-a-peer reason=\"" + std::to_string(i) + "\"", 1,
        at(1s));
    lines += written(
        ceiling, "event=turned-away peer=10.0.0.1 code=tls reason=\"" + std::to_string(i) + "\"", 1,
        at(1s));
  }
  CHECK(lines == 40);
  CHECK(ceiling.left_out(at(60s)).empty());
  CHECK(ceiling.left_out(at(61s)) ==
        std::vector<std::string>{
            "event=repeated of=turned-away peer=10.0.0.1 code=not-a-peer times=980 within_s=60",
            "event=repeated of=turned-away peer=10.0.0.1 code=tls times=980 within_s=60"});
  CHECK(ceiling.left_out(at(200s)).empty());
  CHECK(written(ceiling, "event=turned-away peer=10.0.0.1 code=tls reason=\"again\"", 25,
                at(200s)) == 20);
}

TEST_CASE(
    "from however many addresses, a period has no more lines than the ceiling and a few that say "
    "what was left out") {
  LogCeiling ceiling({.from_others_max = 100, .kinds_max = 200, .told_max = 4});
  std::size_t lines = 0;
  for (int i = 0; i < 10'000; ++i)
    lines += written(ceiling, "event=turned-away peer=2001:db8::" + std::to_string(i) + " code=tls",
                     1, at(0s));
  CHECK(lines == 100);
  const std::vector<std::string> told = ceiling.left_out(at(60s));
  REQUIRE(told.size() == 5);
  CHECK(told[4] == "event=lines-left-out times=9896 kinds=over-200 within_s=60");
}

TEST_CASE("a flood of lines about others leaves those about this node alone") {
  LogCeiling ceiling;
  for (int i = 0; i < 1000; ++i)
    (void)ceiling.admits("event=link-up peer=" + std::to_string(i), at(0s));
  CHECK(written(ceiling, "event=phase from=training to=finishing", 10, at(1s)) == 10);
  CHECK(written(ceiling, "event=evaluation step=1", 700, at(1s)) == 600);
}

TEST_CASE("refusals that repeat are one entry with a count, also when two take turns") {
  RefusalLog log;
  for (int i = 1; i <= 100; ++i) {
    log.note(true, "10.0.0.1", {"not-a-peer", "words " + std::to_string(i)}, at(i * 1s));
    log.note(true, "10.0.0.2", {"tls", "words"}, at(i * 1s));
    log.note(false, "10.0.0.1", {"not-a-peer", "the other way"}, at(i * 1s));
  }
  REQUIRE(log.latest().size() == 3);
  for (const Refusal& entry : log.latest()) CHECK(entry.count == 100);
  CHECK(log.latest()[0].reason.text == "words 100");
  CHECK(log.latest()[0].at == at(100s));
}

TEST_CASE(
    "a flood of one kind from many addresses does not drive out the refusal of another kind") {
  RefusalLog log;
  log.note(false, "box2", {"job-mismatch", "another job"}, at(1s));
  for (int i = 0; i < 1000; ++i)
    log.note(true, "10.0.0." + std::to_string(i), {"too-many", "full"}, at(2s));
  CHECK(log.latest().size() == refusals_max);
  CHECK(log.latest().front().peer == "box2");
  CHECK(log.latest().back().peer == "10.0.0.999");
}
