#include "net/http/url.h"

#include <cctype>
#include <cstdint>
#include <string_view>

#include "core/base/types.h"

namespace gossipd {

std::string url_encode(const std::string& text) {
  static constexpr char digits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  return out;
}

std::optional<std::string> url_decode(const std::string& text, UrlPart part) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && part == UrlPart::query) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      std::uint64_t value = 0;
      if (i + 2 >= text.size() || !from_hex(text.substr(i + 1, 2), value)) return std::nullopt;
      out += static_cast<char>(value);
      i += 2;
    }
  }
  return out;
}

std::optional<UrlTarget> parse_target(const std::string& target) {
  if (target.empty() || target.front() != '/') return std::nullopt;
  const auto question = target.find('?');
  const auto path = url_decode(target.substr(0, question), UrlPart::path);
  if (!path) return std::nullopt;
  UrlTarget parts{*path, {}};
  std::size_t begin = question == std::string::npos ? target.size() : question + 1;
  while (begin < target.size()) {
    const std::size_t end = std::min(target.find('&', begin), target.size());
    const std::string pair = target.substr(begin, end - begin);
    const auto equals = pair.find('=');
    const auto name = url_decode(pair.substr(0, equals), UrlPart::query);
    const auto value =
        url_decode(equals == std::string::npos ? "" : pair.substr(equals + 1), UrlPart::query);
    if (!name || !value) return std::nullopt;
    if (!name->empty()) parts.query[*name] = *value;
    begin = end + 1;
  }
  return parts;
}

}  // namespace gossipd
