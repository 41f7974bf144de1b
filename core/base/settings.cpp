#include "core/base/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace gossipd {
namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

// The shortest text that reads back as the same value; whole numbers without an exponent.
std::string text_of(double value) {
  char buffer[32];
  const bool whole = std::fabs(value) < 1e15 && value == std::floor(value);
  const auto [end, error] =
      whole ? std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed)
            : std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc{} ? std::string(buffer, end) : std::string();
}

std::string range_of(double minimum, double maximum) {
  return "from " + text_of(minimum) + " to " + text_of(maximum);
}

template <typename T>
bool read_all(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string bad_endpoint(std::string_view given) {
  const bool colons = std::ranges::count(given, ':') > 1 && !given.starts_with('[');
  return quoted(given) + " is no address; " +
         (colons ? "one with more than one ':' needs brackets: [2001:db8::1] or [2001:db8::1]:7610"
                 : "write HOST, HOST:PORT, 10.0.0.1:7610 or [::1]:7610");
}

void SettingTable::text(std::string key, std::string flag, std::string value, std::string& target,
                        std::string help) {
  std::string* t = &target;
  add(
      std::move(key), std::move(flag), std::move(value), "", std::move(help), SettingKind::text,
      [t](std::string_view given) -> SettingRefused {
        if (given.size() > 4096) return "is longer than 4096 bytes; shorten it";
        *t = std::string(given);
        return std::nullopt;
      },
      [t] { return *t; });
}

void SettingTable::path(std::string key, std::string flag, std::string value, std::string& target,
                        std::string help) {
  text(std::move(key), std::move(flag), std::move(value), target, std::move(help));
  out_.back().is_path = true;
}

void SettingTable::directory(std::string key, std::string flag, std::string& target,
                             std::string help) {
  path(std::move(key), std::move(flag), "DIR", target, std::move(help));
  out_.back().set = [set = out_.back().set](std::string_view given) -> SettingRefused {
    if (given.empty()) return "is empty; give a directory, or leave it out for the default";
    return set(given);
  };
}

void SettingTable::choice(std::string key, std::string flag, std::string& target,
                          std::vector<std::string> choices, std::string help) {
  std::string* t = &target;
  std::vector<std::string> copy = choices;
  chosen(
      std::move(key), std::move(flag), std::move(choices), std::move(help),
      [t, copy = std::move(copy)](std::size_t index) { *t = copy[index]; }, [t] { return *t; });
}

void SettingTable::chosen(std::string key, std::string flag, std::vector<std::string> choices,
                          std::string help, std::function<void(std::size_t)> store,
                          std::function<std::string()> get) {
  std::string names;
  for (const std::string& c : choices) names += (names.empty() ? "" : "|") + c;
  add(
      std::move(key), std::move(flag), names, "", std::move(help), SettingKind::text,
      [store = std::move(store), choices = std::move(choices),
       names](std::string_view given) -> SettingRefused {
        const auto found = std::find(choices.begin(), choices.end(), given);
        if (found == choices.end())
          return quoted(given) + " is none of " + names + "; choose one of them";
        store(static_cast<std::size_t>(found - choices.begin()));
        return std::nullopt;
      },
      std::move(get));
}

void SettingTable::boolean(std::string key, std::string flag, bool& target, std::string help) {
  bool* t = &target;
  add(
      std::move(key), std::move(flag), "on|off", "", std::move(help), SettingKind::boolean,
      [t](std::string_view given) -> SettingRefused {
        const bool on = given == "on" || given == "true" || given == "yes" || given == "1";
        const bool off = given == "off" || given == "false" || given == "no" || given == "0";
        if (!on && !off)
          return quoted(given) +
                 " is neither on nor off; write on or off (true or false in a file)";
        *t = on;
        return std::nullopt;
      },
      [t] { return std::string(*t ? "true" : "false"); });
}

void SettingTable::whole(std::string key, std::string flag, std::string unit, std::uint64_t minimum,
                         std::uint64_t maximum, std::string help,
                         std::function<void(std::uint64_t)> store,
                         std::function<std::string()> get) {
  add(
      std::move(key), std::move(flag), "N", std::move(unit), std::move(help), SettingKind::integer,
      [store = std::move(store), minimum, maximum](std::string_view given) -> SettingRefused {
        std::uint64_t number = 0;
        if (!read_all(given, number) || number < minimum || number > maximum)
          return quoted(given) + " is not a whole number from " + std::to_string(minimum) + " to " +
                 std::to_string(maximum) + "; write one";
        store(number);
        return std::nullopt;
      },
      std::move(get));
}

void SettingTable::number(std::string key, std::string flag, std::string unit, double& target,
                          double minimum, double maximum, std::string help) {
  double* t = &target;
  add(
      std::move(key), std::move(flag), "X", std::move(unit), std::move(help), SettingKind::number,
      [t, minimum, maximum](std::string_view given) -> SettingRefused {
        double number = 0;
        if (!read_all(given, number) || !std::isfinite(number) || number < minimum ||
            number > maximum)
          return quoted(given) + " is not a number " + range_of(minimum, maximum) + "; write one";
        *t = number;
        return std::nullopt;
      },
      [t] { return text_of(*t); });
}

void SettingTable::milliseconds(std::string key, Duration& target, double minimum, double maximum,
                                std::string help) {
  Duration* t = &target;
  add(
      std::move(key), "", "X", "ms", std::move(help), SettingKind::number,
      [t, minimum, maximum](std::string_view given) -> SettingRefused {
        double number = 0;
        if (!read_all(given, number) || !std::isfinite(number) || number < minimum ||
            number > maximum)
          return quoted(given) + " is not a number of milliseconds " + range_of(minimum, maximum) +
                 "; write one";
        // Rounded: a value that get() has written is taken back unchanged.
        *t = std::chrono::round<Duration>(Milliseconds(number));
        return std::nullopt;
      },
      [t] { return text_of(Milliseconds(*t).count()); });
}

void SettingTable::endpoint(std::string key, std::string flag, std::uint16_t port,
                            std::optional<Endpoint>& target, std::string help) {
  std::optional<Endpoint>* t = &target;
  add(
      std::move(key), std::move(flag), "HOST[:PORT]", "", std::move(help), SettingKind::text,
      [t, port](std::string_view given) -> SettingRefused {
        Endpoint endpoint;
        // ":7610"
        const std::string every = given.starts_with(":") && !given.starts_with("::") ? "*" : "";
        if (!parse_endpoint(every + std::string(given), port, endpoint)) return bad_endpoint(given);
        *t = endpoint;
        return std::nullopt;
      },
      [t] { return *t ? to_string(**t) : std::string(); });
}

void SettingTable::add(std::string key, std::string flag, std::string value, std::string unit,
                       std::string help, SettingKind kind,
                       std::function<SettingRefused(std::string_view)> set,
                       std::function<std::string()> get) {
  Setting setting;
  setting.key = std::move(key);
  setting.flag = std::move(flag);
  setting.value = std::move(value);
  setting.unit = std::move(unit);
  setting.help = std::move(help);
  setting.kind = kind;
  setting.set = std::move(set);
  setting.get = std::move(get);
  out_.push_back(std::move(setting));
}

}  // namespace gossipd
