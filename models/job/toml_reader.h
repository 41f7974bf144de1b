// models/job/toml_reader.h - a strict reader of TOML: job files and node configuration.
//
// Every key that is asked for becomes known; finish() reports each key of the text that nobody
// asked for, with "did you mean" when a known one is close. Getters never fail on the spot: they
// note what is wrong and return the fallback, so that one run shows all mistakes of a file. Every
// message reads `file:line: key: reason; way out`. One thread; views must not outlive the reader.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace gossipd {

inline constexpr std::size_t toml_bytes_max = 64 * 1024;
inline constexpr std::size_t toml_errors_max = 20;   // reported; the rest is only counted
inline constexpr std::size_t toml_array_max = 4096;  // elements of one array
inline constexpr std::size_t toml_string_bytes_max = 4096;

class TomlReader;

// One table of the document, or an empty stand-in where the text has none (all getters then
// return their fallbacks and required keys are reported as missing).
class TomlTable {
 public:
  [[nodiscard]] bool present() const;                  // the text has this table
  [[nodiscard]] bool has(std::string_view key) const;  // also makes the key known
  // as in the text; does not make them known
  [[nodiscard]] std::vector<std::string> keys() const;

  TomlTable table(std::string_view key);
  // [[key]]; at most `count_max` of them.
  std::vector<TomlTable> tables(std::string_view key, std::size_t count_max = 256);

  std::string get_string(std::string_view key, std::string_view fallback);
  std::string require_string(std::string_view key);  // present and not empty
  bool get_bool(std::string_view key, bool fallback);
  std::int64_t get_integer(std::string_view key, std::int64_t fallback,
                           std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                           std::int64_t max = std::numeric_limits<std::int64_t>::max());
  std::int64_t require_integer(std::string_view key, std::int64_t min, std::int64_t max);
  // An integer in the text is a number too; NaN and infinity are refused.
  double get_double(std::string_view key, double fallback,
                    double min = std::numeric_limits<double>::lowest(),
                    double max = std::numeric_limits<double>::max());
  // A string alone is a list of one.
  std::vector<std::string> get_strings(std::string_view key, std::vector<std::string> fallback,
                                       std::size_t count_max = 256);
  std::vector<std::int64_t> get_integers(std::string_view key, std::vector<std::int64_t> fallback,
                                         std::int64_t min, std::int64_t max,
                                         std::size_t count_max = 256);
  // A number alone is a list of one.
  std::vector<double> get_doubles(std::string_view key, std::vector<double> fallback, double min,
                                  double max);
  // One of `choices`; anything else is refused with the list and "did you mean".
  std::string get_choice(std::string_view key, std::string_view fallback,
                         std::span<const std::string_view> choices);
  std::string get_choice(std::string_view key, std::string_view fallback,
                         std::initializer_list<std::string_view> choices) {
    return get_choice(key, fallback,
                      std::span<const std::string_view>(choices.begin(), choices.size()));
  }
  template <typename E>
  E get_enum(std::string_view key, E fallback,
             std::initializer_list<std::pair<std::string_view, E>> names);

  // The caller's own check failed: noted like any other mistake, at the key's line. A key's first
  // reason stands; what follows from its fallback would only mislead.
  void refuse(std::string_view key, std::string_view reason_and_way_out);

 private:
  friend class TomlReader;
  struct Scope;
  TomlTable(TomlReader* reader, Scope* scope) : reader_(reader), scope_(scope) {}
  TomlReader* reader_;
  Scope* scope_;
};

class TomlReader {
 public:
  // `origin` is what messages call the text: a path, or words like "the cluster's job".
  TomlReader(std::string_view text, std::string origin, std::size_t bytes_max = toml_bytes_max);
  ~TomlReader();
  TomlReader(const TomlReader&) = delete;
  TomlReader& operator=(const TomlReader&) = delete;

  [[nodiscard]] TomlTable root();
  TomlTable table(std::string_view key) { return root().table(key); }
  [[nodiscard]] const std::string& origin() const { return origin_; }

  // All mistakes so far, unknown keys included, one per line; nothing when the text is fine.
  // Codes: "bad-toml" (does not parse, too large), "bad-config" (wrong keys or values).
  [[nodiscard]] std::optional<Error> finish();

 private:
  friend class TomlTable;
  struct State;
  std::string origin_;
  std::unique_ptr<State> state_;
};

// Reads a whole regular file of at most `bytes_max`; errors name path, reason and way out. Codes
// "not-found" (missing, or not this user's to read), "bad-file", "too-large", "io-error": it cannot
// be read now.
[[nodiscard]] Result<std::string> read_text_file(const std::string& path,
                                                 std::size_t bytes_max = toml_bytes_max);

template <typename E>
E TomlTable::get_enum(std::string_view key, E fallback,
                      std::initializer_list<std::pair<std::string_view, E>> names) {
  std::vector<std::string_view> choices;
  std::string_view fallback_name;
  for (const auto& [name, value] : names) {
    choices.push_back(name);
    if (value == fallback) fallback_name = name;
  }
  const std::string chosen = get_choice(key, fallback_name, choices);
  for (const auto& [name, value] : names)
    if (name == chosen) return value;
  return fallback;
}

}  // namespace gossipd
