// tools/gossipctl/answers.h - what a daemon answers, read without trusting it.
//
// A field that is missing or of another type reads as empty, zero or nothing: the daemon may be of
// another release.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/gossipctl/commands.h"

namespace gossipd {

using Json = nlohmann::json;

// Returns no object where the answer is none or nests deeper than a daemon's.
[[nodiscard]] Json parse_answer(const std::string& body);

[[nodiscard]] std::string text(const Json& json, const char* key);
[[nodiscard]] std::optional<double> number(const Json& json, const char* key);
[[nodiscard]] std::uint64_t count(const Json& json, const char* key);
[[nodiscard]] bool flag(const Json& json, const char* key);
[[nodiscard]] Json list(const Json& json, const char* key);  // [] if it is none

template <typename Format>
std::string or_dash(const std::optional<double>& value, Format format) {
  return value ? format(*value) : std::string("-");
}

// Prints the failure; returns its code.
ExitCode fail(Console& console, const Failure& failure);

// The object that `target` answers with; or how that failed.
struct Asked {
  Json json;
  std::string body;
  std::optional<Failure> failure;
};
[[nodiscard]] Asked ask(const DaemonClient& client, const std::string& target);

// Gets `target` and prints it raw as JSON, or hands it to `print`. `judge`, where given, then says
// what is wrong with what was shown, however it was.
ExitCode show(const DaemonClient& client, Console& console, const std::string& target,
              const std::function<void(const Json&)>& print,
              const std::function<std::optional<Failure>(const Json&)>& judge = {});

}  // namespace gossipd
