#include "tools/gossipctl/top_view.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/printable.h"
#include "tools/gossipctl/progress.h"

namespace gossipd {

namespace {

constexpr std::size_t name_width_max = 24;
constexpr std::size_t links_rows_max = 6;
constexpr std::size_t events_rows_min = 4;

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

// The first `width` characters.
std::string cut(const std::string& text, std::size_t width) {
  std::size_t at = 0, seen = 0;
  for (; at < text.size(); ++at)
    if (begins_character(text[at]) && seen++ == width) break;
  return text.substr(0, at);
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string kept = cut(text, width);
  const std::string space(width - width_of(kept), ' ');
  return right ? space + kept : kept + space;
}

std::string or_dash_fixed(const std::optional<double>& value, int digits) {
  return value ? fixed(*value, digits) : std::string("-");
}

Style style_of(const std::string& state) {
  if (state == "failed" || state == "down") return Style::bad;
  if (state == "suspect" || state == "opening" || state == "handshake") return Style::warning;
  if (state == "left") return Style::quiet;
  return Style::plain;
}

Style style_of_level(const std::string& level) {
  if (level == "error") return Style::bad;
  return level == "warning" ? Style::warning : Style::strong;
}

std::string name_of(const Json& members, const std::string& id) {
  for (const Json& member : members)
    if (text(member, "id") == id) return text(member, "name");
  return id;
}

// "12:34:56 link up   box2"
Line event_line(const Json& event, const Json& members) {
  std::string kind = text(event, "kind"), detail;
  std::ranges::replace(kind, '-', ' ');
  const Json fields = event.contains("fields") ? event["fields"] : Json::object();
  if (fields.is_object())
    for (const auto& [key, value] : fields.items()) {
      if (!value.is_string() || key == "cluster" || key == "incarnation") continue;
      std::string words = value.get<std::string>();
      if (key == "peer") words = name_of(members, words);
      if (key != "peer" && key != "reason" && key != "text" && key != "why" && key != "hint" &&
          key != "name")
        words = key + " " + words;
      detail += (detail.empty() ? "" : ", ") + words;
    }
  const std::string time = text(event, "time");  // 2026-01-31T12:34:56Z
  return {
      {padded(printable(time.size() >= 19 ? time.substr(11, 8) : time), 9, false), Style::quiet},
      {padded(printable(kind), 18, false), style_of_level(text(event, "level"))},
      {printable(detail), Style::plain}};
}

struct Field {
  const char* title;
  std::size_t width;
  bool right;
  TopChoice::Sort sort;
};
constexpr std::array<Field, 6> member_fields = {{{"STATE", 11, false, TopChoice::Sort::state},
                                                 {"SAMPLES/S", 10, true, TopChoice::Sort::speed},
                                                 {"BATCH", 7, true, TopChoice::Sort::batch},
                                                 {"LOSS", 9, true, TopChoice::Sort::loss},
                                                 {"DISTANCE", 10, true, TopChoice::Sort::distance},
                                                 {"HEARD", 10, true, TopChoice::Sort::count_}}};

std::string state_of(const Json& member) {
  const std::string state = text(member, "state");
  return state == "alive" ? text(member, "phase") : state;
}

bool comes_before(const Json& a, const Json& b, TopChoice::Sort sort) {
  const auto larger = [&](const char* key) {
    return number(a, key).value_or(0) > number(b, key).value_or(0);
  };
  switch (sort) {
    case TopChoice::Sort::state: return state_of(a) < state_of(b);
    case TopChoice::Sort::speed: return larger("samples_per_second");
    case TopChoice::Sort::batch: return larger("batch");
    case TopChoice::Sort::loss: return larger("loss");
    case TopChoice::Sort::distance: return larger("consensus_distance");
    default: return text(a, "name") < text(b, "name");
  }
}

std::vector<Json> sorted_members(const TopState& state, const TopChoice& choice) {
  std::vector<Json> members(state.members.begin(), state.members.end());
  std::ranges::stable_sort(
      members, [](const Json& a, const Json& b) { return text(a, "id") < text(b, "id"); });
  std::ranges::stable_sort(members, [&choice](const Json& a, const Json& b) {
    return choice.reversed ? comes_before(b, a, choice.sort) : comes_before(a, b, choice.sort);
  });
  return members;
}

Line member_line(const Json& member, std::size_t name_width) {
  const std::string state = state_of(member);
  const bool known = count(member, "step") > 0;
  const auto distance = number(member, "consensus_distance");
  const std::array<std::string, member_fields.size()> cells = {
      printable(state),
      or_dash_fixed(number(member, "samples_per_second"), 0),
      grouped(count(member, "batch")),
      or_dash_fixed(known ? number(member, "loss") : std::nullopt, 4),
      or_dash_fixed(distance && *distance < 1 ? distance : std::nullopt, 4),
      flag(member, "self") ? "this node" : or_dash(number(member, "age_s"), human_seconds)};
  Line line = {{padded(printable(text(member, "name")), name_width, false),
                flag(member, "self") ? Style::strong : Style::plain},
               {"  ", Style::plain}};
  const Style style = style_of(text(member, "state"));
  for (std::size_t n = 0; n < cells.size(); ++n)
    line.push_back({padded(cells[n], member_fields[n].width, member_fields[n].right),
                    n == 0 ? style : Style::plain});
  return line;
}

Line members_head(const TopChoice& choice, std::size_t name_width, const std::string& words) {
  const auto mark = [&choice](TopChoice::Sort sort) {
    return sort == choice.sort ? Style::accent : Style::quiet;
  };
  Line line = {{padded(words, name_width, false), mark(TopChoice::Sort::name)},
               {"  ", Style::plain}};
  for (const Field& field : member_fields)
    line.push_back({padded(field.title, field.width, field.right), mark(field.sort)});
  return line;
}

void add_members(std::vector<Line>& lines, const TopState& state, TopChoice& choice,
                 std::size_t rows) {
  const std::vector<Json> members = sorted_members(state, choice);
  std::size_t name_width = 8;
  for (const Json& member : members)
    name_width = std::max(name_width, width_of(printable(text(member, "name"))));
  name_width = std::min(name_width, name_width_max);
  choice.scroll = std::min(choice.scroll, members.size() - std::min(members.size(), rows));
  lines.push_back(members_head(choice, name_width, "MEMBER"));
  for (std::size_t n = choice.scroll; n < members.size() && n < choice.scroll + rows; ++n)
    lines.push_back(member_line(members[n], name_width));
  if (members.size() > rows)
    lines.back().push_back({"   " + grouped(members.size()) + " in all", Style::quiet});
}

void add_links(std::vector<Line>& lines, const Json& links, std::size_t rows) {
  lines.push_back(
      {{"LINK                      STATE          AGE    GAIN  CORRECTION      SENT  RECEIVED",
        Style::quiet}});
  std::size_t shown = 0;
  for (const Json& link : links) {
    if (shown++ == rows) break;
    const auto bytes = [&link](const char* key) {
      return padded(human_bytes(static_cast<double>(count(link, key))), 10, true);
    };
    const std::string state = printable(text(link, "state"));
    lines.push_back({{padded(printable(text(link, "name")), name_width_max, false), Style::plain},
                     {"  " + padded(state, 10, false), style_of(state)},
                     {padded(or_dash_fixed(number(link, "age_steps"), 0), 8, true)},
                     {padded(or_dash_fixed(number(link, "gain"), 3), 8, true)},
                     {padded(or_dash_fixed(number(link, "correction"), 4), 12, true)},
                     {bytes("bytes_sent") + bytes("bytes_received")}});
  }
  if (links.empty()) lines.push_back({{"none is open", Style::quiet}});
}

Line bar_line(const Json& status, std::size_t columns, bool unicode) {
  const double progress = std::clamp(number(status, "progress").value_or(0), 0.0, 1.0);
  const auto left = number(status, "time_left_s");
  const bool finished = text(status, "phase") == "finished";
  const std::string words = "  " + percentage(progress, 1) +
                            (finished ? ", finished"
                             : left   ? ", " + human_seconds(*left) + " left"
                                      : std::string());
  const std::size_t width = columns > words.size() + 10 ? columns - words.size() - 1 : 10;
  const auto full = static_cast<std::size_t>(progress * static_cast<double>(width));
  std::string done, rest;
  for (std::size_t n = 0; n < full; ++n) done += unicode ? "█" : "#";
  for (std::size_t n = full; n < width; ++n) rest += unicode ? "░" : "-";
  return {{done, Style::accent}, {rest, Style::quiet}, {words, Style::strong}};
}

void add_head(std::vector<Line>& lines, const TopState& state, std::size_t columns, bool unicode) {
  const Json& s = state.status;
  const std::string job = text(s, "job_name");
  const bool good = flag(s, "ready") && !flag(s, "isolated");
  lines.push_back(
      {{printable(job.empty() ? "gossipd" : job), Style::strong},
       {"  " + printable(text(s, "phase")), good ? Style::good : Style::warning},
       {"  seen from " + printable(text(s, "name")), Style::quiet},
       {state.connection.empty() ? "" : "  " + printable(state.connection), Style::bad}});
  lines.push_back(bar_line(s, columns, unicode));
  const double sent = static_cast<double>(count(s, "bytes_sent_total"));
  const double dense = static_cast<double>(count(s, "dense_baseline_bytes"));
  const auto distance = number(s, "consensus_distance");
  const auto accuracy = number(s, "accuracy"), rate = number(s, "learning_rate");
  lines.push_back({{grouped(count(s, "cluster_samples_estimate")) + " of " +
                    grouped(count(s, "budget_samples")) + " samples, step " +
                    grouped(count(s, "step")) + ", sent " + human_bytes(sent) +
                    (dense > 0 ? " (" + percentage(sent / dense, 2) + " of all-reduce)" : "")}});
  lines.push_back(
      {{"accuracy "},
       {accuracy ? percentage(*accuracy, 2) : "-", Style::strong},
       {"  distance "},
       {or_dash_fixed(distance && *distance < 1 ? distance : std::nullopt, 4), Style::strong},
       {"  learning rate "},
       {or_dash_fixed(rate, 4), Style::strong},
       {"  loss "},
       {count(s, "step") > 0 ? or_dash_fixed(number(s, "loss"), 4) : "-", Style::strong},
       {"  " + sparkline(state.losses, columns > 100 ? 40 : 16, unicode), Style::accent}});
  if (const std::string what = text(s, "waiting_for"); !what.empty())
    lines.push_back({{"waiting for " + printable(what), Style::warning}});
  const Json warnings = list(s, "warnings");
  if (!warnings.empty())
    lines.push_back({{"warning: " + printable(text(warnings.back(), "text")), Style::warning}});
  if (const std::string trouble = text(s, "trouble"); !trouble.empty())
    lines.push_back({{printable(trouble), Style::warning}});
  lines.push_back({});
}

std::string ascii(const std::string& text) {
  std::string kept;
  for (const char c : text)
    if (begins_character(c)) kept += static_cast<unsigned char>(c) < 0x80 ? c : '?';
  return kept;
}

void fit(std::vector<Line>& lines, std::size_t rows, std::size_t columns, bool unicode) {
  if (lines.size() > rows) lines.resize(rows);
  for (Line& line : lines) {
    std::size_t left = columns;
    for (Span& span : line) {
      if (!unicode) span.text = ascii(span.text);
      span.text = cut(span.text, left);
      left -= width_of(span.text);
    }
  }
}

}  // namespace

std::vector<ServerEvent> parse_events(const std::string& body) {
  std::vector<ServerEvent> events;
  ServerEvent now;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = std::min(body.find('\n', at), body.size());
    const std::string line = body.substr(at, end - at);
    at = end + 1;
    if (line.empty() && !now.data.empty()) events.push_back(std::exchange(now, {}));
    if (line.starts_with("event: ")) now.event = line.substr(7);
    if (line.starts_with("id: ")) now.id = line.substr(4);
    if (line.starts_with("data: ")) now.data = line.substr(6);
  }
  return events;
}

void TopState::take(const std::string& body) {
  const std::vector<ServerEvent> told = parse_events(body);
  // Names first: events speak of members by id.
  for (const ServerEvent& one : told) {
    if (one.event != "snapshot") continue;
    const Json snapshot = parse_answer(one.data);
    if (!snapshot.is_object()) continue;
    const auto part = [&snapshot](const char* key) {
      return snapshot.contains(key) && snapshot[key].is_object() ? snapshot[key] : Json::object();
    };
    status = part("status");
    members = list(part("members"), "members");
    links = list(part("links"), "links");
    const auto loss = number(status, "loss");
    if (loss && count(status, "step") > 0) losses.push_back(*loss);
    if (losses.size() > losses_max) losses.pop_front();
  }
  for (const ServerEvent& one : told) {
    // It goes into the next request.
    if (std::ranges::all_of(one.id, [](char c) { return c == '-' || (c >= '0' && c <= '9'); }) &&
        !one.id.empty())
      last_id = one.id;
    if (one.event != "event") continue;
    const Json event = parse_answer(one.data);
    if (event.is_object()) events.push_front(event_line(event, members));
    if (events.size() > events_max) events.pop_back();
  }
}

void TopState::take_history(const std::string& body) {
  std::deque<double> before;
  for (const Json& point : list(parse_answer(body), "points"))
    if (const auto loss = number(point, "loss"); loss && count(point, "step") > 0)
      before.push_back(*loss);
  while (before.size() > losses_max) before.pop_front();
  losses = std::move(before);
}

std::string sparkline(const std::deque<double>& numbers, std::size_t width, bool unicode) {
  static constexpr std::array<const char*, 8> bars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 8> plain = {"_", ".", ",", "-", "=", "+", "*", "#"};
  // All of it, however long it has run: each place is the mean of its share.
  std::vector<double> places;
  const std::size_t count = std::min(width, numbers.size());
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t from = n * numbers.size() / count, to = (n + 1) * numbers.size() / count;
    double sum = 0;
    for (std::size_t k = from; k < to; ++k) sum += numbers[k];
    places.push_back(sum / static_cast<double>(to - from));
  }
  if (places.empty()) return {};
  const auto [low, high] = std::ranges::minmax(places);
  std::string line;
  for (const double place : places) {
    const double height = high > low ? (place - low) / (high - low) * 7 : 0;
    const auto bar = static_cast<std::size_t>(std::clamp(std::round(height), 0.0, 7.0));
    line += unicode ? bars[bar] : plain[bar];
  }
  return line;
}

std::vector<Line> show_top(const TopState& state, TopChoice& choice, std::size_t rows,
                           std::size_t columns, bool unicode) {
  std::vector<Line> lines;
  add_head(lines, state, columns, unicode);
  const std::size_t links = std::min(links_rows_max, std::max<std::size_t>(1, state.links.size()));
  const std::size_t fixed_rows = lines.size() + 1 + 2 + links + 1 + 1 + events_rows_min + 1;
  const std::size_t room = rows > fixed_rows + 3 ? rows - fixed_rows : 3;
  add_members(lines, state, choice, std::min(room, std::max<std::size_t>(1, state.members.size())));
  lines.push_back({});
  add_links(lines, state.links, links);
  lines.push_back({});
  lines.push_back({{"EVENTS", Style::quiet}});
  for (const Line& event : state.events) {
    if (lines.size() + 1 >= rows) break;
    lines.push_back(event);
  }
  if (rows > 0 && lines.size() > rows - 1) lines.resize(rows - 1);
  while (lines.size() + 1 < rows) lines.push_back({});
  lines.push_back({{"q quit   up/down scroll   left/right sort   r reverse", Style::quiet}});
  fit(lines, rows, columns, unicode);
  return lines;
}

}  // namespace gossipd
