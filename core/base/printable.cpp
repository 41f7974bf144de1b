#include "core/base/printable.h"

#include <cstdint>

namespace gossipd {
namespace {

constexpr std::uint32_t no_character = 0xffffffff;

// Takes the first character off `text`, which is not empty; or its first byte, if that begins none.
std::uint32_t take_character(std::string_view& text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  std::uint32_t value = length == 1 ? first : first & (0x7fu >> length);
  bool good = length != 0 && length <= text.size();
  for (std::size_t i = 1; good && i < length; ++i) {
    good = (byte(i) & 0xc0) == 0x80;
    value = value << 6 | (byte(i) & 0x3f);
  }
  // Written longer than needed, one half of a UTF-16 pair, or beyond Unicode.
  if (length == 3) good = good && value >= 0x800 && (value < 0xd800 || value > 0xdfff);
  if (length == 4) good = good && value >= 0x10000 && value <= 0x10ffff;
  text.remove_prefix(good ? length : 1);
  return good ? value : no_character;
}

bool is_visible(std::uint32_t c) {
  if (c == no_character || c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;
  const bool turns_or_hides = c == 0xad || c == 0x61c || (c >= 0x200b && c <= 0x200f) ||
                              (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
                              c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
                              (c >= 0xe0000 && c <= 0xe0fff);
  return !turns_or_hides;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty())
    if (take_character(text) == no_character) return false;
  return true;
}

std::string printable(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const std::uint32_t character = take_character(text);
    const bool line_end = character == '\n' && lines == Lines::many;
    if (line_end || is_visible(character))
      out += before.substr(0, before.size() - text.size());
    else
      out += '?';
  }
  return out;
}

std::string log_word(std::string_view text) {
  std::string out = printable(text);
  for (char& c : out)
    if (c == ' ' || c == '"' || c == '=') c = '_';
  return out;
}

std::string log_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace gossipd
