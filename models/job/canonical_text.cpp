#include "models/job/canonical_text.h"

#include <charconv>

namespace gossipd {

std::string canonical(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  std::string text(digits, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string canonical(bool value) { return value ? "true" : "false"; }

std::string canonical(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string canonical(std::uint64_t value) { return std::to_string(value); }
std::string canonical(std::int64_t value) { return std::to_string(value); }

}  // namespace gossipd
