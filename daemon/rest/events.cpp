#include "daemon/rest/events.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "daemon/log/log_format.h"
#include "daemon/rest/view.h"

namespace gossipd {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* keep_alive = ": nothing new\n\n";
constexpr Duration snapshot_interval = std::chrono::seconds(1);
// A snapshot grows with the cluster; so does its interval, and a thousand members cost what two
// hundred do.
constexpr std::size_t members_per_second = 200;

const char* word_of(Level level) {
  switch (level) {
    case Level::debug: return "debug";
    case Level::info: return "info";
    case Level::warning: return "warning";
    case Level::error: return "error";
  }
  return "error";
}

HttpBodyStream::Piece piece_of(const std::string& kind, const std::string& id,
                               std::string_view data) {
  while (data.ends_with('\n')) data.remove_suffix(1);
  std::string text = "event: " + kind + "\n";
  if (!id.empty()) text += "id: " + id + "\n";
  text += "data: ";
  text += data;
  text += "\n\n";
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

std::string event_json(Level level, const std::string& words, double seconds_since_1970) {
  Json json = {{"time", utc_time(seconds_since_1970)},
               {"level", word_of(level)},
               {"kind", ""},
               {"fields", Json::object()}};
  const auto cut = std::string_view(words).substr(0, Events::words_bytes_max);
  for (auto& [key, value] : log_pairs(cut)) {
    if (json["fields"].size() >= Events::fields_max) break;
    Json& at = key == "event" ? json["kind"] : json["fields"][key];
    if (!at.is_string() || at == "") at = std::move(value);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Events::note(Level level, const std::string& words, double seconds_since_1970) {
  const auto piece = piece_of("event", id(next_++), event_json(level, words, seconds_since_1970));
  kept_.push_back(piece);
  if (kept_.size() > kept_max) kept_.pop_front();
  for (const Listener& listener : listeners_) (void)listener.stream->write(piece);
  forget_closed();
}

std::shared_ptr<HttpBodyStream> Events::open(const Wanted& wanted, const std::string& snapshot) {
  forget_closed();
  auto stream = std::make_shared<HttpBodyStream>(keep_alive);
  const std::uint64_t first = next_ - kept_.size();
  const std::uint64_t after = number_of(wanted.after);
  if (after > 0 && after + 1 < first)
    (void)stream->write(piece_of("gap", "", Json{{"missed", first - after - 1}}.dump()));
  for (std::uint64_t number = std::max(first, after + 1); number < next_; ++number)
    (void)stream->write(kept_[number - first]);
  if (wanted.snapshots) (void)stream->write(piece_of("snapshot", "", snapshot));
  if (wanted.follow)
    listeners_.push_back({stream, wanted.snapshots});
  else
    stream->close();
  return stream;
}

bool Events::snapshot_due(Instant now, std::size_t members) {
  forget_closed();
  const bool wanted = std::ranges::any_of(
      listeners_, [](const Listener& one) { return one.snapshots && one.stream->is_idle(); });
  const Duration interval = snapshot_interval * static_cast<long>(1 + members / members_per_second);
  // The caller asks once a second, never quite on time.
  if (!wanted || now - last_snapshot_ < interval - snapshot_interval / 2) return false;
  last_snapshot_ = now;
  return true;
}

void Events::tell_snapshot(const std::string& json) {
  const auto piece = piece_of("snapshot", "", json);
  for (const Listener& listener : listeners_)
    if (listener.snapshots && listener.stream->is_idle()) (void)listener.stream->write(piece);
}

std::string Events::id(std::uint64_t number) const {
  return std::to_string(life_) + "-" + std::to_string(number);
}

std::uint64_t Events::number_of(const std::string& id) const {
  const std::string prefix = std::to_string(life_) + "-";
  if (!id.starts_with(prefix)) return 0;
  std::uint64_t number = 0;
  const char* end = id.data() + id.size();
  const auto [stop, error] = std::from_chars(id.data() + prefix.size(), end, number);
  return error == std::errc() && stop == end && number < next_ ? number : 0;
}

void Events::forget_closed() {
  std::erase_if(listeners_, [](const Listener& one) { return !one.stream->is_open(); });
}

}  // namespace gossipd
