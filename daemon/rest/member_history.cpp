#include "daemon/rest/member_history.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

namespace gossipd {

namespace {

constexpr float unknown = std::numeric_limits<float>::quiet_NaN();

template <typename T>
void drop_every_second(std::vector<T>& list) {
  std::size_t seen = 0;
  std::erase_if(list, [&seen](const T&) { return seen++ % 2 == 1; });
}

// Five digits are more than a curve shows.
void append_number(std::string& text, double number, const char* format) {
  if (!std::isfinite(number)) {
    text += "null";
    return;
  }
  char digits[32];
  const int length = std::snprintf(digits, sizeof digits, format, number);
  text.append(digits, static_cast<std::size_t>(length));
}

template <typename List, typename Number>
std::string numbers(const List& list, Number number_of, const char* format = "%.5g") {
  std::string text = "[";
  for (const auto& one : list) {
    if (text.size() > 1) text += ',';
    append_number(text, number_of(one), format);
  }
  return text + "]";
}

}  // namespace

bool MemberHistory::due(double time_s) const {
  return times_.empty() || time_s >= times_.back() + interval_s_;
}

void MemberHistory::add(double time_s, const std::vector<MemberView>& members) {
  if (times_.size() >= columns_max) thin_out();
  times_.push_back(time_s);
  Column none;
  none.fill(unknown);
  for (auto& [id, row] : rows_) row.columns.push_back(none);
  for (const MemberView& member : members) {
    const MemberRecord& record = member.record;
    if (record.state != MemberState::alive && record.state != MemberState::suspect) continue;
    if (!rows_.contains(record.id)) make_room();
    if (!rows_.contains(record.id) && rows_.size() >= members_max) continue;
    Row& row = rows_[record.id];
    row.name = record.name;
    row.columns.resize(times_.size(), none);
    Column& now = row.columns.back();
    const bool trains = record.phase == Phase::training;
    if (record.step > 0) now[loss] = static_cast<float>(record.loss);
    if (record.consensus_distance < 1)
      now[consensus_distance] = static_cast<float>(record.consensus_distance);
    now[samples_per_second] = trains ? static_cast<float>(record.samples_per_second) : 0;
    now[batch] = static_cast<float>(record.batch);
  }
}

void MemberHistory::thin_out() {
  drop_every_second(times_);
  for (auto& [id, row] : rows_) drop_every_second(row.columns);
  interval_s_ *= 2;
}

// Of members that have gone, the one that went first makes room.
void MemberHistory::make_room() {
  if (rows_.size() < members_max) return;
  const auto silent_columns = [](const auto& entry) {
    const auto& columns = entry.second.columns;
    const auto last = std::find_if(columns.rbegin(), columns.rend(), [](const Column& column) {
      return !std::isnan(column[samples_per_second]);
    });
    return last - columns.rbegin();
  };
  const auto oldest = std::ranges::max_element(rows_, {}, silent_columns);
  if (silent_columns(*oldest) > 1) rows_.erase(oldest);
}

std::string MemberHistory::json() const {
  using Json = nlohmann::json;
  static constexpr std::array<std::pair<Figure, const char*>, figures> names = {
      {{loss, "loss"},
       {consensus_distance, "consensus_distance"},
       {samples_per_second, "samples_per_second"},
       {batch, "batch"}}};
  std::string text = "{\"interval_s\":";
  append_number(text, interval_s_, "%.9g");
  text += ",\"time_s\":" +
          numbers(
              times_, [](double time) { return time; }, "%.9g") +
          ",\"members\":[";
  bool first = true;
  for (const auto& [id, row] : rows_) {
    if (!std::exchange(first, false)) text += ',';
    text += "{\"id\":\"" + to_hex(id) +
            "\",\"name\":" + Json(row.name).dump(-1, ' ', false, Json::error_handler_t::replace);
    for (const auto& [figure, name] : names)
      text += ",\"" + std::string(name) + "\":" +
              numbers(row.columns, [figure = figure](const Column& c) { return c[figure]; });
    text += '}';
  }
  return text + "]}\n";
}

}  // namespace gossipd
