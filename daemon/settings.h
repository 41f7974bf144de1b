// daemon/settings.h - the one table of node settings that files, environment, flags and reference share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config.h"

namespace gossipd {

// How a value is written in a node file; in flags and the environment everything is text.
enum class SettingKind { text, boolean, integer, number, list };

// One setting, bound to the DaemonConfig that settings_of() was called with.
struct Setting {
  std::string key;    // "exchange.codec"; the part before the dot is the file's table
  std::string flag;   // "device" for --device; empty: only --set reaches it
  std::string value;  // what the flag's value is called in --help
  std::string unit;   // "" when the value has none
  std::string help;   // one line
  SettingKind kind = SettingKind::text;
  // Takes the value, or says why not and what would do; then nothing has changed.
  std::function<std::optional<std::string>(std::string_view)> set;
  std::function<std::string()> get;  // as set() would read it; "" when not given
  bool is_path = false;              // in a node file: relative to that file's directory
};

[[nodiscard]] std::vector<Setting> settings_of(DaemonConfig&);
// "exchange.codec" → "GOSSIPD_EXCHANGE_CODEC".
[[nodiscard]] std::string environment_name(std::string_view key);

}  // namespace gossipd
