// models/job/canonical_text.h - writes the TOML text that a job is hashed by: one way to write each
// value.
//
// Numbers in their shortest exact form, strings with '"' and '\' escaped, keys in the caller's
// order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gossipd {

[[nodiscard]] std::string canonical(double value);
[[nodiscard]] std::string canonical(bool value);
[[nodiscard]] std::string canonical(std::string_view value);
[[nodiscard]] std::string canonical(std::uint64_t value);
[[nodiscard]] std::string canonical(std::int64_t value);

template <typename T>
[[nodiscard]] std::string canonical(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() == 1 ? "" : ", ") + canonical(value);
  return text + "]";
}

struct CanonicalText {
  std::string text;
  void table(std::string_view name) { text += "\n[" + std::string(name) + "]\n"; }
  template <typename T>
  void line(std::string_view key, const T& value) {
    text += std::string(key) + " = " + canonical(value) + "\n";
  }
};

}  // namespace gossipd
