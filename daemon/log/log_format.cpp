#include "daemon/log/log_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/printable.h"

namespace gossipd {

namespace {

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

// The key that begins at `at`; empty if none does.
std::string_view key_at(std::string_view words, std::size_t at) {
  std::size_t end = at;
  while (end < words.size() && is_key_character(words[end])) ++end;
  return end > at && end < words.size() && words[end] == '=' ? words.substr(at, end - at)
                                                             : std::string_view();
}

// A value in quotes that begins at `at`, with `at` moved behind it; one that never ends goes to the
// end of the line.
std::string take_quoted(std::string_view words, std::size_t& at) {
  std::string value;
  for (++at; at < words.size() && words[at] != '"'; ++at) {
    if (words[at] == '\\' && at + 1 < words.size()) ++at;
    value += words[at];
  }
  if (at < words.size()) ++at;
  return value;
}

std::string take_word(std::string_view words, std::size_t& at) {
  const std::size_t end = std::min(words.find(' ', at), words.size());
  std::string value(words.substr(at, end - at));
  at = end;
  return value;
}

bool needs_quotes(const std::string& value) {
  return value.empty() || value.find_first_of(" \"=\\") != std::string::npos;
}

std::string logfmt_value(const std::string& value) {
  return needs_quotes(value) ? log_quoted(value) : value;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> log_pairs(std::string_view words) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t at = 0; at < words.size();) {
    if (words[at] == ' ') {
      ++at;
      continue;
    }
    if (const std::string_view key = key_at(words, at); !key.empty()) {
      at += key.size() + 1;
      const bool quoted = at < words.size() && words[at] == '"';
      pairs.emplace_back(key, quoted ? take_quoted(words, at) : take_word(words, at));
      continue;
    }
    const std::string word = take_word(words, at);
    if (pairs.empty())
      pairs.emplace_back("message", word);
    else
      pairs.back().second += (pairs.back().second.empty() ? "" : " ") + word;
  }
  return pairs;
}

std::string log_payload(LogFormat format, const std::string& node, std::string_view words) {
  const std::string line = printable(words);  // words come from peers too: a line stays a line
  if (format == LogFormat::text) return "node=" + log_word(node) + " " + line;
  std::vector<std::pair<std::string, std::string>> pairs = log_pairs(line);
  pairs.emplace(pairs.begin(), "node", printable(node));
  std::set<std::string> used = {"time", "level"};  // that come before
  nlohmann::ordered_json json;
  std::string text;
  for (auto& [key, value] : pairs) {
    std::string name = key;
    for (int i = 2; !used.insert(name).second; ++i) name = key + "_" + std::to_string(i);
    if (format == LogFormat::json)
      json[name] = value;
    else
      text += (text.empty() ? "" : " ") + name + "=" + logfmt_value(value);
  }
  if (format != LogFormat::json) return text;
  text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

const char* log_pattern(LogFormat format) {
  switch (format) {
    case LogFormat::text: return "%Y-%m-%dT%H:%M:%S.%e%z %l %v";
    case LogFormat::logfmt: return "time=%Y-%m-%dT%H:%M:%S.%e%z level=%l %v";
    case LogFormat::json: return R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})";
  }
  return "%v";
}

}  // namespace gossipd
