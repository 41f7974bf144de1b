#include "core/base/log_ceiling.h"

#include <algorithm>

namespace gossipd {
namespace {

constexpr std::size_t word_bytes_max = 96;

// "key=value" of the first word with that key; empty if there is none.
std::string_view word(std::string_view words, std::string_view key) {
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    const std::string_view one = words.substr(at, end - at);
    if (one.starts_with(key)) return one.substr(0, word_bytes_max);
    at = end + 1;
  }
  return {};
}

}  // namespace

bool LogCeiling::admits(std::string_view words, Instant now) {
  if (!running_) running_ = true, ends_ = now + limits_.period;
  std::string_view whom = word(words, "peer=");
  if (whom.empty()) whom = word(words, "endpoint=");
  const std::string_view event = word(words, "event=");
  std::string kind(event);
  for (const std::string_view part : {whom, word(words, "code=")})
    if (!part.empty()) kind += ' ' + std::string(part);

  auto found = kinds_.find(kind);
  // This node's own kinds are few, and a flood of others' must leave room for them.
  if (found == kinds_.end() && (whom.empty() || kinds_.size() < limits_.kinds_max))
    found = kinds_.emplace(kind, Count{}).first;
  const std::uint32_t alike_max = whom.empty()                   ? limits_.own_alike_max
                                  : event == "event=turned-away" ? limits_.turned_away_max
                                                                 : limits_.alike_max;
  const bool room = whom.empty() || from_others_ < limits_.from_others_max;
  const bool writes = room && found != kinds_.end() && found->second.written < alike_max;
  if (writes) {
    ++found->second.written;
    from_others_ += whom.empty() ? 0 : 1;
  } else {
    ++(found == kinds_.end() ? beyond_kinds_ : found->second.left_out);
  }
  return writes;
}

std::vector<std::string> LogCeiling::left_out(Instant now) {
  if (!running_ || now < ends_) return {};
  std::vector<std::pair<std::uint64_t, std::string>> counts;
  for (const auto& [kind, count] : kinds_)
    if (count.left_out > 0) counts.emplace_back(count.left_out, kind);
  std::ranges::stable_sort(counts, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> lines;
  std::uint64_t rest = beyond_kinds_;
  std::size_t rest_kinds = 0;
  const std::string within =
      " within_s=" + std::to_string(static_cast<long>(seconds(limits_.period)));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& [times, kind] = counts[i];
    if (i >= limits_.told_max) {
      rest += times;
      ++rest_kinds;
    } else {
      // "event=X …" becomes "event=repeated of=X …".
      lines.push_back("event=repeated of=" + kind.substr(kind.find('=') + 1) +
                      " times=" + std::to_string(times) + within);
    }
  }
  if (rest > 0)
    lines.push_back("event=lines-left-out times=" + std::to_string(rest) +
                    " kinds=" + (beyond_kinds_ > 0 ? "over-" : "") +
                    std::to_string(beyond_kinds_ > 0 ? limits_.kinds_max : rest_kinds) + within);
  running_ = false;
  kinds_.clear();
  from_others_ = 0;
  beyond_kinds_ = 0;
  return lines;
}

}  // namespace gossipd
