// core/base/settings.h - one table of named settings that files, environment, flags, lab and
// reference share.
//
// A Setting is bound to the variable it was made for, which must outlive it: set() writes there,
// get() reads from there. SettingTable appends settings of the usual kinds to a vector; other kinds
// are added with add(). Pure; every refusal is words that say what was given and what would do.
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

// How a value is written in a file; in flags and the environment everything is text.
enum class SettingKind { text, boolean, integer, number, list };

// Why a value was refused and what would do; nothing when it was taken.
using SettingRefused = std::optional<std::string>;

struct Setting {
  std::string key;    // "exchange.codec"; the part before the dot is the file's table
  std::string flag;   // "device" for --device; empty: only --set reaches it
  std::string value;  // what the flag's value is called in --help
  std::string unit;   // "" when the value has none
  std::string help;   // one line
  SettingKind kind = SettingKind::text;
  // Takes the value, or says why not; then nothing has changed.
  std::function<SettingRefused(std::string_view)> set;
  std::function<std::string()> get;  // as set() would read it; "" when not given
  bool is_path = false;              // in a file: relative to that file's directory
};

inline constexpr double setting_day_ms = 24.0 * 3600 * 1000;

class SettingTable {
 public:
  explicit SettingTable(std::vector<Setting>& out) : out_(out) {}

  void text(std::string key, std::string flag, std::string value, std::string& target,
            std::string help);
  void path(std::string key, std::string flag, std::string value, std::string& target,
            std::string help);
  void directory(std::string key, std::string flag, std::string& target, std::string help);
  void choice(std::string key, std::string flag, std::string& target,
              std::vector<std::string> choices, std::string help);
  void boolean(std::string key, std::string flag, bool& target, std::string help);
  void number(std::string key, std::string flag, std::string unit, double& target, double minimum,
              double maximum, std::string help);
  void milliseconds(std::string key, Duration& target, double minimum, double maximum,
                    std::string help);
  // "HOST[:PORT]"; `port` when none is given.
  void endpoint(std::string key, std::string flag, std::uint16_t port,
                std::optional<Endpoint>& target, std::string help);

  template <std::unsigned_integral T>
  void integer(std::string key, std::string flag, std::string unit, T& target,
               std::uint64_t minimum, std::uint64_t maximum, std::string help) {
    T* t = &target;
    whole(
        std::move(key), std::move(flag), std::move(unit), minimum, maximum, std::move(help),
        [t](std::uint64_t number) { *t = static_cast<T>(number); },
        [t] { return std::to_string(*t); });
  }

  // `names[i]` is how the i-th value of the enumeration (numbered from 0) is written.
  template <typename E>
  requires std::is_enum_v<E>
  void one_of(std::string key, std::string flag, E& target, std::vector<std::string> names,
              std::string help) {
    E* t = &target;
    std::vector<std::string> copy = names;
    chosen(
        std::move(key), std::move(flag), std::move(names), std::move(help),
        [t](std::size_t index) { *t = static_cast<E>(index); },
        [t, copy = std::move(copy)] { return copy[static_cast<std::size_t>(*t)]; });
  }

  void add(std::string key, std::string flag, std::string value, std::string unit, std::string help,
           SettingKind kind, std::function<SettingRefused(std::string_view)> set,
           std::function<std::string()> get);

 private:
  void whole(std::string key, std::string flag, std::string unit, std::uint64_t minimum,
             std::uint64_t maximum, std::string help, std::function<void(std::uint64_t)> store,
             std::function<std::string()> get);
  void chosen(std::string key, std::string flag, std::vector<std::string> names, std::string help,
              std::function<void(std::size_t)> store, std::function<std::string()> get);

  std::vector<Setting>& out_;
};

// For settings of other kinds: 'given' in quotes, and the words for an address that is none.
[[nodiscard]] std::string quoted(std::string_view text);
[[nodiscard]] std::string bad_endpoint(std::string_view given);

}  // namespace gossipd
