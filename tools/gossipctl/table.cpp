#include "tools/gossipctl/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/base/printable.h"

namespace gossipd {

namespace {

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

void print_table(std::ostream& out, const std::vector<std::vector<std::string>>& given) {
  std::vector<std::vector<std::string>> rows = given;
  for (auto& row : rows)
    for (std::string& cell : row) cell = printable(cell);  // may come from a peer
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], width(row[i]));
    }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - width(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::string fixed(double number, int digits) {
  if (!std::isfinite(number)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, number);
  return text;
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number), out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ' ';
    out += digits[i];
  }
  return out;
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 59.95) return fixed(seconds, 1) + " s";
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  char text[64];
  if (whole < 3600)
    std::snprintf(text, sizeof text, "%u min %02u s", static_cast<unsigned>(whole / 60),
                  static_cast<unsigned>(whole % 60));
  else
    std::snprintf(text, sizeof text, "%llu h %02u min",
                  static_cast<unsigned long long>(whole / 3600),
                  static_cast<unsigned>(whole % 3600 / 60));
  return text;
}

std::string human_milliseconds(double milliseconds) {
  return milliseconds < 999.95 ? fixed(milliseconds, 1) + " ms" : human_seconds(milliseconds / 1e3);
}

std::string human_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(units)) bytes /= 1000, ++unit;
  return fixed(bytes, unit == 0 || bytes >= 99.95 ? 0 : 1) + " " + units[unit];
}

}  // namespace gossipd
