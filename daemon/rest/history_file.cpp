#include "daemon/rest/history_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/nesting.h"
#include "daemon/disk/durable_file.h"

namespace gossipd {

namespace {

using Json = nlohmann::json;

constexpr int history_format = 1;
constexpr double interval_max_s = 1e9;

std::filesystem::path path_in(const std::filesystem::path& state_dir) {
  return state_dir / "history.jsonl";
}

Json to_json(const HistoryPoint& p) {
  Json json = {{"time_s", p.time_s},
               {"cluster_samples", p.cluster_samples},
               {"step", p.step},
               {"loss", p.loss},
               {"consensus_distance", p.consensus_distance},
               {"learning_rate", p.learning_rate},
               {"samples_per_second", p.samples_per_second},
               {"bytes_sent", p.bytes_sent}};
  if (!p.evaluation) return json;
  json["evaluation_loss"] = p.evaluation->loss;
  if (p.evaluation->accuracy) json["accuracy"] = *p.evaluation->accuracy;
  if (p.evaluation->top5_accuracy) json["top5_accuracy"] = *p.evaluation->top5_accuracy;
  if (p.evaluation->perplexity) json["perplexity"] = *p.evaluation->perplexity;
  return json;
}

// A number that is not finite is written as null. Exceptions end in read_line().
double number(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? NAN : value.get<double>();
}

std::optional<double> maybe(const Json& json, const char* key) {
  return json.contains(key) ? std::optional(number(json, key)) : std::nullopt;
}

std::uint64_t count(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_number_unsigned()) throw std::invalid_argument(key);
  return value.get<std::uint64_t>();
}

HistoryPoint point_from(const Json& json) {
  HistoryPoint p;
  p.time_s = json.at("time_s").get<double>();
  p.cluster_samples = count(json, "cluster_samples");
  p.step = count(json, "step");
  p.loss = number(json, "loss");
  p.consensus_distance = number(json, "consensus_distance");
  p.learning_rate = maybe(json, "learning_rate").value_or(0);
  p.samples_per_second = maybe(json, "samples_per_second").value_or(0);
  p.bytes_sent = count(json, "bytes_sent");
  if (const auto loss = maybe(json, "evaluation_loss"))
    p.evaluation = Figures{.loss = *loss,
                           .accuracy = maybe(json, "accuracy"),
                           .top5_accuracy = maybe(json, "top5_accuracy"),
                           .perplexity = maybe(json, "perplexity")};
  return p;
}

// False: this is no line of a history, or does not belong after the ones before.
bool read_line(std::string_view line, StoredHistory& into) {
  if (json_nests_deeper(line)) return false;
  try {
    const Json json = Json::parse(line);
    if (into.interval_s == 0) {
      const double interval = json.at("interval_s").get<double>();
      if (json.at("format").get<int>() != history_format || !(interval > 0) ||
          interval > interval_max_s)
        return false;
      into.interval_s = interval;
      return true;
    }
    const HistoryPoint point = point_from(json);
    const double before = into.points.empty() ? 0 : into.points.back().time_s;
    if (!std::isfinite(point.time_s) || point.time_s < before ||
        into.points.size() >= History::points_max)
      return false;
    into.points.push_back(point);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string lines_of(const History::Unsaved& unsaved) {
  std::string text;
  if (unsaved.whole)
    text = Json{{"format", history_format}, {"interval_s", unsaved.interval_s}}.dump() + "\n";
  for (const HistoryPoint& point : unsaved.points) text += to_json(point).dump() + "\n";
  return text;
}

std::optional<Error> append(const std::filesystem::path& path, std::string_view text) {
  const auto failed = [&path](int reason) {
    return Error{reason == ENOSPC ? "no-space" : "io-error",
                 path.string() + ": cannot append to it: " + std::strerror(reason)};
  };
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return failed(errno);
  std::optional<Error> error;
  while (!text.empty() && !error) {
    const ssize_t wrote = ::write(file, text.data(), text.size());
    if (wrote < 0 && errno != EINTR) error = failed(errno);
    if (wrote > 0) text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  ::close(file);
  return error;
}

}  // namespace

Result<StoredHistory> load_history(const std::filesystem::path& state_dir) {
  const std::filesystem::path path = path_in(state_dir);
  StoredHistory stored;
  const Result<std::string> text = read_whole(path);
  if (!text && text.error().code == "not-found") return stored;
  if (!text && text.error().code == "io-error") return text.error();
  bool sound = static_cast<bool>(text);
  std::string_view rest = text ? std::string_view(*text) : std::string_view();
  while (sound && !rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;  // a crash cut it off
    sound = read_line(rest.substr(0, end), stored);
    if (sound) rest.remove_prefix(end + 1);
  }
  stored.whole = sound && rest.empty() && stored.interval_s > 0;
  if (sound) return stored;
  set_aside(path);
  stored.warning = (text ? path.string() + ": is damaged after " +
                               std::to_string(stored.points.size()) + " points, which are kept"
                         : text.error().text) +
                   "; set aside as history.corrupt.jsonl, the history goes on without the rest";
  return stored;
}

std::optional<Error> save_history(const std::filesystem::path& state_dir,
                                  const History::Unsaved& unsaved) {
  const std::filesystem::path path = path_in(state_dir);
  return unsaved.whole ? write_durably(path, lines_of(unsaved)) : append(path, lines_of(unsaved));
}

}  // namespace gossipd
