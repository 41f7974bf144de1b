// daemon/log/log_format.h - a line of the log as a person or as a program reads it.
//
// Lines come as `key=value` words (core/base/printable.h: log_word, log_quoted). Whatever they
// hold, the result is one line, and in the formats `logfmt` and `json` it parses: what is no
// key=value word belongs to the value before it. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossipd {

enum class LogFormat { text, logfmt, json };

// The pairs in order; words before the first key have the key "message".
[[nodiscard]] std::vector<std::pair<std::string, std::string>> log_pairs(std::string_view words);

// What follows time and level in a line of that format: `node` and the words. In json it is the
// rest of an object, without its brackets. A key that comes twice keeps its first value there, and
// the second gets the key with "_2".
[[nodiscard]] std::string log_payload(LogFormat format, const std::string& node,
                                      std::string_view words);

// The same line with time and level, as a pattern of spdlog in which %v is the payload.
[[nodiscard]] const char* log_pattern(LogFormat format);

}  // namespace gossipd
