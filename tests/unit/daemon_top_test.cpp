// gossipctl top without a terminal: what it would draw.
#include <doctest/doctest.h>

#include "daemon/rest/live.h"
#include "daemon_made_up.h"
#include "net/http/body_stream.h"
#include "tools/gossipctl/progress.h"
#include "tools/gossipctl/top_view.h"

using namespace gossipd;

namespace {

std::string answer_of(MadeUpDaemon& daemon) {
  const auto stream = daemon.live.open({.after = "", .follow = false}, snapshot_json(daemon));
  std::string body;
  for (auto piece = stream->front(); piece; piece = stream->front()) {
    body += *piece;
    stream->pop();
  }
  return body;
}

std::string drawn(const TopState& state, std::size_t rows, std::size_t columns,
                  TopChoice choice = {}, bool unicode = true) {
  std::string text;
  for (const Line& line : show_top(state, choice, rows, columns, unicode)) {
    for (const Span& span : line) text += span.text;
    text += '\n';
  }
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("top shows members, links, progress, a curve and events by the names of members") {
  MadeUpDaemon daemon;
  daemon.live.note(Level::info, "event=link-up peer=00000000000000bb", 1'700'000'000);
  TopState state;
  state.take(answer_of(daemon));
  state.take(answer_of(daemon));
  const std::string text = drawn(state, 24, 100);
  for (const char* part :
       {"tiny", "training", "seen from box1", "50.0 %", "5 000 of 10 000 samples", "box2",
        "suspect", "this node", "0.432", "link up", "22:13:20"}) {
    INFO(part, " in\n", text);
    CHECK(has(text, part));
  }
  CHECK(has(text, "link up           box2"));
}

TEST_CASE("top fits every size of terminal, down to nothing") {
  MadeUpDaemon daemon;
  for (int n = 0; n < 300; ++n)
    daemon.made_up_members.push_back(MadeUpDaemon::member(static_cast<std::uint64_t>(1000 + n),
                                                          "b\xC3\xA4r" + std::to_string(n), false));
  for (int n = 0; n < 40; ++n) daemon.live.note(Level::warning, "event=e reason=\"why\"", 0);
  TopState state;
  state.take(answer_of(daemon));
  for (const std::size_t rows : {0u, 1u, 2u, 5u, 24u, 60u, 400u})
    for (const std::size_t columns : {0u, 1u, 7u, 80u, 300u}) {
      CAPTURE(rows);
      CAPTURE(columns);
      TopChoice choice{.scroll = 1'000'000};
      const auto lines = show_top(state, choice, rows, columns, true);
      CHECK(lines.size() <= rows);
      CHECK(choice.scroll < 302);
      for (const Line& line : lines) {
        std::size_t width = 0;
        for (const Span& span : line)
          for (const char c : span.text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
        CHECK(width <= columns);
      }
    }
}

TEST_CASE("no name, event or warning of top reaches the terminal as more than characters") {
  const std::string hostile = "\x1b[2J\x1b]0;owned\x07\r\n\t\xE2\x80\xAE\xff";
  MadeUpDaemon daemon;
  daemon.made_up.node.name = daemon.made_up_members[1].record.name = hostile;
  daemon.made_up_links[0].name = daemon.made_up_links[0].state = hostile;
  daemon.made_up.job_name = daemon.made_up.node.waiting_for = daemon.made_up.node.trouble = hostile;
  daemon.made_up.warnings.push_back({1, hostile});
  daemon.live.note(Level::error, "event=" + hostile + " " + hostile + "=\"" + hostile + "\"", 0);
  TopState state;
  state.take(answer_of(daemon));
  state.connection = hostile;
  for (const bool unicode : {true, false}) {
    const std::string text = drawn(state, 50, 200, {}, unicode);
    for (const char c : text) CHECK((c == '\n' || (c != 127 && (c & 0xE0) != 0)));
    CHECK_FALSE(has(text, "\xE2\x80\xAE"));
  }
}

TEST_CASE("what is no answer of a daemon changes nothing that would crash") {
  for (const std::string& body :
       {std::string(), std::string("data: {}\n\n"), std::string("event: snapshot\ndata: 7\n\n"),
        std::string("event: snapshot\ndata: {\"members\":{\"members\":[1,[]]},"
                    "\"links\":{\"links\":[null]},\"status\":[]}\n\n"),
        std::string("event: event\nid: x y\ndata: {\"fields\":[1]}\n\n"),
        std::string("event: event\ndata: {\"kind\":1,\"fields\":{\"a\":1}}\n\n"),
        std::string(2000, '['),
        std::string("event: snapshot\ndata: ") + std::string(2000, '[') + "\n\n"}) {
    CAPTURE(body);
    TopState state;
    state.take(body);
    state.take_history(body);
    CHECK(state.last_id.empty());
    CHECK(drawn(state, 24, 80).size() > 24);
  }
}

TEST_CASE("members are sorted by what the keys choose") {
  MadeUpDaemon daemon;
  TopState state;
  state.take(answer_of(daemon));
  const auto first = [&state](TopChoice choice) {
    const std::string text = drawn(state, 30, 100, choice);
    return text.find("\nbox1") < text.find("\nbox2") ? "box1" : "box2";
  };
  CHECK(first({.sort = TopChoice::Sort::name}) == doctest::String("box1"));
  CHECK(first({.sort = TopChoice::Sort::name, .reversed = true}) == doctest::String("box2"));
  CHECK(first({.sort = TopChoice::Sort::speed}) == doctest::String("box1"));
  CHECK(first({.sort = TopChoice::Sort::state}) == doctest::String("box2"));  // suspect, training
}

TEST_CASE("a sparkline shows all of a curve in its width") {
  CHECK(sparkline({}, 8, true).empty());
  CHECK(sparkline({1, 2}, 8, false) == "_#");
  CHECK(sparkline({5, 5, 5}, 8, false) == "___");
  std::deque<double> falling;
  for (int n = 600; n > 0; --n) falling.push_back(n);
  CHECK(sparkline(falling, 8, false) == "#*+=-,._");
  CHECK(sparkline(falling, 8, true) == "█▇▆▅▄▃▂▁");
}

TEST_CASE("a line of progress ends with the line, however long a figure is") {
  MadeUpDaemon daemon;
  daemon.made_up.node.loss = 1e80;
  CHECK(progress_words(daemon.made_up).find(" loss=1e+80 accuracy=") != std::string::npos);
  CHECK(fixed(-1e80, 4) == "-1e+80");
  CHECK(fixed(999999999999999.0, 1) == "999999999999999.0");
}

TEST_CASE("a line of progress says what matters") {
  MadeUpDaemon daemon;
  CHECK(progress_line(parse_answer(status_json(daemon.made_up))) ==
        "50.0 %, 16.7 s left, step 18 240, loss 0.231, accuracy 91.00 %, 0 samples/s here, "
        "1 member alive, sent 1.0 kB");
  CHECK(progress_line(Json()) == "0.0 %, , step 0, 0 members alive, sent 0 B");
}
