#include "core/base/types.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace gossipd {

std::string to_hex(std::uint64_t value) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[static_cast<std::size_t>(i)] = digits[value & 15];
  return text;
}

bool from_hex(const std::string& text, std::uint64_t& out) {
  if (text.empty() || text.size() > 16) return false;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  out = value;
  return true;
}

std::string to_hex(const JobFile& file) { return to_hex(file.hash_high) + to_hex(file.hash_low); }

bool from_hex(const std::string& text, JobFile& out) {
  if (text.size() != 32) return false;
  std::uint64_t high = 0, low = 0;
  if (!from_hex(text.substr(0, 16), high) || !from_hex(text.substr(16), low)) return false;
  out.hash_high = high;
  out.hash_low = low;
  return true;
}

// Names are ASCII on the wire of DNS, and a control character could reach a terminal.
static bool is_host_character(char c) { return c > 0x20 && c < 0x7f && c != '/'; }

bool parse_endpoint(const std::string& text, std::uint16_t port, Endpoint& out) {
  std::string host = text;
  std::string port_text;
  if (!text.empty() && text.front() == '[') {
    const auto close = text.find(']');
    if (close == std::string::npos) return false;
    host = text.substr(1, close - 1);
    if (close + 1 < text.size()) {
      if (text[close + 1] != ':') return false;
      port_text = text.substr(close + 2);
      if (port_text.empty()) return false;
    }
  } else if (const auto colon = text.find(':'); colon != std::string::npos) {
    if (text.find(':', colon + 1) != std::string::npos) return false;  // IPv6 needs brackets
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
    if (port_text.empty()) return false;
  }
  if (host.empty() || host.size() > 255 || !std::ranges::all_of(host, is_host_character))
    return false;
  std::uint16_t number = port;
  if (!port_text.empty()) {
    const auto [end, error] =
        std::from_chars(port_text.data(), port_text.data() + port_text.size(), number);
    if (error != std::errc{} || end != port_text.data() + port_text.size()) return false;
  }
  // A number alone is a port that lacks its host, although resolvers read 4 bytes in it.
  if (std::ranges::all_of(host, [](char c) { return c >= '0' && c <= '9'; })) return false;
  // else it could not be written in brackets
  if (host.find_first_of("[]") != std::string::npos) return false;
  out = Endpoint{host, number};
  return true;
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

}  // namespace gossipd
