// tools/gossipctl/table.h - aligned columns, and numbers as people read them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace gossipd {

// The first row is the header. Columns are as wide as their widest cell, counted in code points so
// that a name with an umlaut stays aligned. No trailing spaces.
void print_table(std::ostream& out, const std::vector<std::vector<std::string>>& rows);

[[nodiscard]] std::string grouped(std::uint64_t number);  // "18 240"
// "0.2 s", "3 min 05 s", "2 h 10 min"
[[nodiscard]] std::string human_seconds(double seconds);
[[nodiscard]] std::string human_milliseconds(double milliseconds);  // "0.4 ms", "1.2 s"
[[nodiscard]] std::string human_bytes(double bytes);         // "999 B", "1.2 MB": powers of 1000
[[nodiscard]] std::string fixed(double number, int digits);  // "0.231"

}  // namespace gossipd
