#include "daemon/config/refused_line.h"

#include <algorithm>

#include "models/files/regular_file.h"
#include "models/job/toml_reader.h"
#include "net/peer/invite.h"

namespace gossipd {

// A flag that took the next flag for its value, mostly because a shell found nothing to put there.
std::optional<Error> refuse_missing_value(const std::vector<std::string>& arguments,
                                          const std::vector<Setting>& settings) {
  const auto takes_value = [&](const std::string& word) {
    return word == "--config" || word == "--set" || std::ranges::any_of(settings, [&](auto& s) {
             return !s.flag.empty() && word == "--" + s.flag;
           });
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string flag = arguments[i].substr(0, arguments[i].find('='));
    if (!takes_value(flag)) continue;
    const bool apart = flag == arguments[i];
    if (apart && ++i == arguments.size()) break;  // said well enough by who reads the flags
    const std::string value = apart ? arguments[i] : arguments[i].substr(flag.size() + 1);
    const bool is_flag = apart && value.starts_with("--");
    if (!is_flag && !(value.empty() && (flag == "--join" || !apart))) continue;
    const std::string way_out = flag == "--join"
                                    ? "give it what `gossipctl invite` on a member prints, @FILE "
                                      "with that, - to be asked for it, or HOST[:PORT]"
                                : is_flag ? "write " + flag + "=" + value + " if that is its value"
                                          : "give it one, or leave it out";
    return Error{"usage", flag + " has no value" +
                              (is_flag ? ", since '" + value + "' follows it; " : "; ") + way_out};
  }
  return std::nullopt;
}

std::string mistakes_in_log(const Error& error) {
  std::string text = without_secrets(error.text);
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  return text;
}

DaemonConfig config_of_refusal(const std::vector<std::string>& arguments,
                               const Environment& environment) {
  DaemonConfig config;
  config.name = own_host_name();
  const std::vector<Setting> settings = settings_of(config);
  const Setting& format = *std::ranges::find(settings, "log.format", &Setting::key);
  const auto take = [&](const std::string& value) { (void)format.set(value); };
  const auto variable = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  std::string file = variable("GOSSIPD_CONFIG"), by_flag;
  std::vector<std::string> overrides;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    for (const std::string flag : {"--config", "--set", "--log-format"}) {
      const bool apart = arguments[i] == flag && i + 1 < arguments.size();
      if (!apart && !arguments[i].starts_with(flag + "=")) continue;
      const std::string value = apart ? arguments[i + 1] : arguments[i].substr(flag.size() + 1);
      if (flag == "--config") file = value;
      if (flag == "--log-format") by_flag = value;
      if (flag == "--set" && value.starts_with("log.format="))
        overrides.push_back(value.substr(11));
    }
  if (!file.empty())
    if (const Result<std::string> text = read_text_file(file))
      take(TomlReader(*text, file).table("log").get_string("format", ""));
  take(variable("GOSSIPD_LOG_FORMAT"));
  for (const std::string& value : overrides) take(value);
  take(by_flag);
  return config;
}

}  // namespace gossipd
