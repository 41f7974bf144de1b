// tools/gossipctl/top_view.h - what gossipctl top shows, as lines of styled text. Pure.
//
// Reads a daemon's answers without trusting them: every text passes core/base/printable.h, so that
// no name reaches the terminal as more than characters.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "tools/gossipctl/answers.h"

namespace gossipd {

enum class Style { plain, strong, quiet, good, warning, bad, accent };

struct Span {
  std::string text;
  Style style = Style::plain;
};
using Line = std::vector<Span>;

// Server-sent events, taken apart.
struct ServerEvent {
  std::string event, id, data;
};
[[nodiscard]] std::vector<ServerEvent> parse_events(const std::string& body);

// What has been heard so far.
struct TopState {
  static constexpr std::size_t losses_max = 600;
  static constexpr std::size_t events_max = 200;

  std::string job, connection;  // connection: empty while the daemon answers
  Json status, members = Json::array(), links = Json::array();
  std::deque<double> losses;
  std::deque<Line> events;  // newest first
  std::string last_id;

  // An answer of /v1/events.
  void take(const std::string& body);
  // An answer of /v1/history: what was before.
  void take_history(const std::string& body);
};

// What the keys have chosen.
struct TopChoice {
  enum class Sort { name, state, speed, batch, loss, distance, count_ };
  Sort sort = Sort::name;
  bool reversed = false;
  std::size_t scroll = 0;  // members left out above; show_top() lowers it to what there is
};

// As many lines as fit in `rows`, each at most `columns` code points wide. `unicode`: the terminal
// shows more than ASCII.
[[nodiscard]] std::vector<Line> show_top(const TopState& state, TopChoice& choice, std::size_t rows,
                                         std::size_t columns, bool unicode);

// The last `width` numbers as bars of eight heights.
[[nodiscard]] std::string sparkline(const std::deque<double>& numbers, std::size_t width,
                                    bool unicode);

}  // namespace gossipd
