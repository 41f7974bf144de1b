#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/printable.h"
#include "core/base/random.h"
#include "daemon/log/log.h"
#include "daemon/log/log_format.h"

using namespace gossipd;
using Json = nlohmann::json;
using Pairs = std::vector<std::pair<std::string, std::string>>;

namespace {

Json as_json(const std::string& node, const std::string& words) {
  return Json::parse("{" + log_payload(LogFormat::json, node, words) + "}", nullptr, false);
}

// Any bytes, mostly those that mean something in a line of a log.
std::string hostile(Random& random) {
  static constexpr std::string_view pieces[] = {
      "\"", "\\", "=",        " ",        "\n",   "\r",  "\t",   "\x1b[2J", "event=", "peer=",
      "a",  "{}", "\xc3\xa4", "\xff\xfe", "code", "%v",  ",",    "'",       "",       "node=",
      "x=", "]",  "\0",       "time=",    "_",    "9=9", "\\\"", "  "};
  std::string text;
  for (std::uint64_t left = random.below(24); left > 0; --left)
    text += pieces[random.below(std::size(pieces))];
  return text;
}

}  // namespace

TEST_CASE("words of a log line become pairs, and quotes keep what they hold together") {
  CHECK(log_pairs("event=start id=0a state=\"/var/my state\"") ==
        Pairs{{"event", "start"}, {"id", "0a"}, {"state", "/var/my state"}});
  CHECK(log_pairs("event=refuse peer=box1 (0a) code=x reason=\"say \\\"no\\\" x=1\" n=2") ==
        Pairs{{"event", "refuse"},
              {"peer", "box1 (0a)"},
              {"code", "x"},
              {"reason", "say \"no\" x=1"},
              {"n", "2"}});
  CHECK(log_pairs("from=peer=0a") == Pairs{{"from", "peer=0a"}});
  CHECK(log_pairs("no words at all") == Pairs{{"message", "no words at all"}});
  CHECK(log_pairs("open=\"and never shut") == Pairs{{"open", "and never shut"}});
  CHECK(log_pairs("").empty());
}

TEST_CASE("a value in quotes holds no other words, whatever it is made of") {
  Random random(11);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = hostile(random);
    INFO("case ", i, ": ", printable(text));
    const Pairs pairs = log_pairs("event=refuse reason=" + log_quoted(text) + " n=1");
    REQUIRE(pairs == Pairs{{"event", "refuse"}, {"reason", text}, {"n", "1"}});
  }
}

TEST_CASE("a warning is one event with its text, whatever that is made of") {
  std::vector<std::pair<Level, std::string>> heard;
  watch_log([&](Level level, const std::string& words) { heard.emplace_back(level, words); });
  log_warning("/data: \"a b\" is full; make room");
  watch_log({});
  REQUIRE(heard.size() == 1);
  CHECK(heard[0].first == Level::warning);
  CHECK(log_pairs(heard[0].second) ==
        Pairs{{"event", "warning"}, {"text", "/data: \"a b\" is full; make room"}});
}

TEST_CASE("each line is one line in every format, and parses in logfmt and json") {
  Random random(12);
  for (int i = 0; i < 2000; ++i) {
    const std::string words = hostile(random), node = hostile(random);
    INFO("case ", i, ": ", printable(words), " | ", printable(node));
    const Json json = as_json(node, words);
    REQUIRE(json.is_object());
    REQUIRE(json["node"] == printable(node));
    const std::string logfmt = log_payload(LogFormat::logfmt, node, words);
    for (const std::string& line : {logfmt, log_payload(LogFormat::text, node, words)})
      REQUIRE(line.find_first_of("\n\r\x1b") == std::string::npos);
    Pairs from_json;
    for (const auto& [key, value] : json.items()) from_json.emplace_back(key, value);
    Pairs from_logfmt = log_pairs(logfmt);
    std::sort(from_json.begin(), from_json.end());
    std::sort(from_logfmt.begin(), from_logfmt.end());
    REQUIRE(from_json == from_logfmt);
  }
}

TEST_CASE("a key that comes twice, or is one of the line's own, keeps both values") {
  const Json json = as_json("box1", "event=a node=b time=c event=d");
  CHECK(json ==
        Json{{"node", "box1"}, {"event", "a"}, {"node_2", "b"}, {"time_2", "c"}, {"event_2", "d"}});
}
