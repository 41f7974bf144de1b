#include "daemon/config/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/base/did_you_mean.h"
#include "core/base/printable.h"
#include "daemon/config/bootstrap.h"
#include "daemon/config/check_whole.h"
#include "daemon/config/refused_line.h"
#include "daemon/config/settings.h"
#include "daemon/disk/state_store.h"
#include "models/files/regular_file.h"
#include "models/job/toml_reader.h"

extern char** environ;

namespace gossipd {

namespace {

struct Given {  // what the command line said, before it is believed
  std::string config_file;
  bool check_config = false;
  bool version = false;
  std::map<std::string, std::string> by_key;  // of the settings' own flags
  std::vector<std::string> overrides;         // --set KEY=VALUE
};

Error bad_config(std::string text) { return Error{"bad-config", std::move(text)}; }

std::vector<std::string> keys_of(const std::vector<Setting>& settings) {
  std::vector<std::string> keys;
  for (const Setting& s : settings) keys.push_back(s.key);
  return keys;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates,
                       const std::string& quote = "'") {
  const std::string close = did_you_mean(word, candidates);
  return close.empty() ? std::string() : "; did you mean " + quote + close + quote + "?";
}

const Setting* find(const std::vector<Setting>& settings, std::string_view key) {
  for (const Setting& s : settings)
    if (s.key == key) return &s;
  return nullptr;
}

std::string describe(const Setting& s) {
  std::string text = s.help;
  if (!s.unit.empty()) text += " [" + s.unit + "]";
  return text;
}

// ---- flags
// ---------------------------------------------------------------------------------------

// `unknown`: the words that nothing took, the likely cause of whatever else was `missing`.
std::string refused_flags(const std::vector<std::string>& unknown, const std::string& missing,
                          const std::vector<std::string>& flags,
                          const std::vector<Setting>& settings) {
  const std::string all = "; gossipd --help lists the flags";
  if (unknown.empty()) return missing + all;
  const std::string name = unknown.front().substr(0, unknown.front().find('='));
  if (name == "init")
    return "'init' comes first and has flags of its own: gossipd init --data DIR; gossipd init "
           "--help lists them";
  if (!name.starts_with("-"))
    return "'" + name + "' is no flag; commands such as status are gossipctl's" + all;
  if (name.starts_with("--") && find(settings, name.substr(2)) != nullptr)
    return "there is no flag " + name + "; the setting is given as --set " + name.substr(2) +
           "=VALUE";
  return "there is no flag " + name + suggestion(name, flags, "") + all;
}

// Fills `given`; a text to print when the user asked for help.
Result<std::string> read_flags(const std::vector<std::string>& arguments,
                               const std::vector<Setting>& settings, Given& given) {
  CLI::App app{
      "gossipd - one node of a cluster that trains a neural network together, with nobody in "
      "charge",
      "gossipd"};
  app.footer(
      "Every setting also has a node-file key, a GOSSIPD_ variable and --set KEY=VALUE; "
      "daemon/README.md lists them.\n"
      "A job file:   gossipd init --data DIR\n"
      "New cluster:  gossipd --job fashion-mnist.toml --data DIR\n"
      "Join one:     gossipd --join INVITE --data DIR, with what `gossipctl invite` prints, or\n"
      "              gossipd --join HOST --key-file cluster.key --data DIR");
  app.add_option("--config", given.config_file, "node file (TOML)")->type_name("FILE");
  std::map<std::string, std::vector<std::string>> values;
  for (const Setting& s : settings) {
    if (s.flag.empty()) continue;
    CLI::Option* option = app.add_option("--" + s.flag, values[s.key], describe(s));
    option->type_name(s.value)->allow_extra_args(false);
  }
  app.add_option("--set", given.overrides,
                 "any setting, for example --set exchange.codec=int8; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--check-config", given.check_config,
               "try the job on the data, print the effective configuration and exit");
  app.add_flag("--version", given.version, "print the version and exit");
  if (auto error = refuse_missing_value(arguments, settings)) return *error;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::ParseError& error) {
    std::vector<std::string> flags = {"--config", "--set", "--check-config", "--version", "--help"};
    for (const Setting& s : settings)
      if (!s.flag.empty()) flags.push_back("--" + s.flag);
    return Error{"usage", refused_flags(app.remaining(), error.what(), flags, settings)};
  }
  for (const Setting& s : settings) {
    const auto found = values.find(s.key);
    if (found == values.end() || found->second.empty()) continue;
    if (s.kind != SettingKind::list && found->second.size() > 1)
      return bad_config("--" + s.flag + ": given " + std::to_string(found->second.size()) +
                        " times; give it once");
    std::string joined;
    for (const std::string& v : found->second) joined += (joined.empty() ? "" : ",") + v;
    given.by_key[s.key] = joined;
  }
  return std::string();
}

// ---- node file
// -----------------------------------------------------------------------------------

std::string resolved(const Setting& s, const std::string& value,
                     const std::filesystem::path& directory) {
  const std::string mark = value.starts_with("unix:")                  ? "unix:"
                           : s.key == "join" && value.starts_with('@') ? "@"
                                                                       : "";
  const std::string path = value.substr(mark.size());
  const bool relative = (s.is_path || !mark.empty()) && !path.empty() && path != "none" &&
                        std::filesystem::path(path).is_relative();
  return relative ? mark + (directory / path).lexically_normal().string() : value;
}

void read_setting(TomlTable table, const std::string& key, const Setting& s,
                  const std::filesystem::path& directory) {
  if (!table.has(key)) return;
  std::string value;
  switch (s.kind) {
    case SettingKind::text: value = resolved(s, table.get_string(key, s.get()), directory); break;
    case SettingKind::boolean: value = table.get_bool(key, s.get() == "true") ? "on" : "off"; break;
    case SettingKind::integer:
      value = std::to_string(table.get_integer(key, std::stoll(s.get())));
      break;
    case SettingKind::number: {
      std::ostringstream text;
      text.precision(17);
      text << table.get_double(key, std::stod(s.get()));
      value = text.str();
      break;
    }
    case SettingKind::list:
      for (const std::string& v : table.get_strings(key, {}, seeds_max))
        value += (value.empty() ? "" : ",") + resolved(s, v, directory);
      break;
  }
  if (const auto refused = s.set(value)) table.refuse(key, *refused);
}

// Where `join` is given. Only there an invite is read: that of an overruled source may be gone.
enum class JoinFrom { node_file, environment, override_, flag };

JoinFrom join_from(const Given& given, const Environment& environment) {
  if (given.by_key.contains("join")) return JoinFrom::flag;
  if (std::ranges::any_of(given.overrides, [](auto& text) { return text.starts_with("join="); }))
    return JoinFrom::override_;
  const auto variable = environment.find(environment_name("join"));
  const bool set = variable != environment.end() && !variable->second.empty();
  return set ? JoinFrom::environment : JoinFrom::node_file;
}

std::optional<Error> read_node_file(const std::string& path, const std::vector<Setting>& settings,
                                    bool with_join) {
  const Result<std::string> text = read_text_file(path);
  if (!text && text.error().code == "io-error") return text.error();
  if (!text) return bad_config(text.error().text);
  TomlReader reader(*text, path);
  const std::filesystem::path directory = std::filesystem::absolute(path).parent_path();
  for (const Setting& s : settings) {
    const std::size_t dot = s.key.find('.');
    if (s.key == "join" && !with_join)
      (void)reader.root().get_strings(s.key, {}, seeds_max);
    else if (dot == std::string::npos)
      read_setting(reader.root(), s.key, s, directory);
    else
      read_setting(reader.table(s.key.substr(0, dot)), s.key.substr(dot + 1), s, directory);
  }
  return reader.finish();
}

// ---- environment and overrides
// -------------------------------------------------------------------

std::optional<Error> read_environment(const Environment& environment,
                                      const std::vector<Setting>& settings, bool with_join,
                                      std::vector<std::string>& warnings) {
  // The others are the Python package's and deploy/'s.
  std::vector<std::string> names = {"GOSSIPD_CONFIG", "GOSSIPD_BIN_DIR", "GOSSIPD_SOCKET",
                                    "GOSSIPD_TORCH"};
  for (const Setting& s : settings) {
    names.push_back(environment_name(s.key));
    const auto found = environment.find(names.back());
    if (found == environment.end() || found->second.empty()) continue;
    if (s.key == "join" && !with_join) continue;
    if (const auto refused = s.set(found->second))
      return bad_config("environment " + names.back() + ": " + *refused);
  }
  // Only a warning: Kubernetes sets GOSSIPD_SERVICE_HOST and the like for a service of that name.
  for (const auto& [name, value] : environment)
    if (name.starts_with("GOSSIPD_") && std::find(names.begin(), names.end(), name) == names.end())
      warnings.push_back("environment " + name + " names no setting and is ignored" +
                         suggestion(name, names, ""));
  return std::nullopt;
}

std::optional<Error> apply_override(const std::string& text, const std::vector<Setting>& settings) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return bad_config("--set: '" + text + "' has no " + (equals == 0 ? "key" : "value") +
                      "; write KEY=VALUE, for example exchange.codec=int8");
  const std::string key = text.substr(0, equals);
  const Setting* setting = find(settings, key);
  if (setting == nullptr)
    return bad_config(
        "--set: there is no setting '" + key + "'" + suggestion(key, keys_of(settings)) +
        (did_you_mean(key, keys_of(settings)).empty() ? "; gossipd --check-config lists all" : ""));
  if (const auto refused = setting->set(text.substr(equals + 1)))
    return bad_config("--set " + key + ": " + *refused);
  return std::nullopt;
}

// ---- what no single setting can see
// ----------------------------------------------------------------

// A member has what its invite gave, whose file may well be gone since. Whether a node with a state
// is one is seen when that is read (start_plan.cpp).
std::optional<Error> look_for_invite(const DaemonConfig& config,
                                     std::vector<std::string>& warnings) {
  if (!config.invite_missing) return std::nullopt;
  const std::string text = "join: " + config.invite_missing->text;
  if (StateStore::is_new(config.state_dir)) return bad_config(text);
  warnings.push_back(text + "; a member goes on without, and may leave it out of `join`");
  return std::nullopt;
}

Result<std::string> default_state_dir(const Environment& environment) {
  if (::geteuid() == 0) return std::string("/var/lib/gossipd");
  const auto state = environment.find("XDG_STATE_HOME");
  if (state != environment.end() && !state->second.empty()) return state->second + "/gossipd";
  const auto home = environment.find("HOME");
  // Not below /tmp: a reboot may clear that, and another user may own the folder there.
  if (home == environment.end() || home->second.empty())
    return bad_config(
        "state_dir: HOME is not set, so there is no folder for this user's state; name one with "
        "--state-dir DIR");
  return home->second + "/.local/state/gossipd";
}

// A FIFO or a device would hold the start up for ever.
std::optional<Error> check_files(const std::vector<Setting>& settings) {
  for (const Setting& s : settings) {
    const std::string path = s.get();
    if (!s.is_path || path.empty() || path == "none" || s.key == "state_dir" || s.key == "data" ||
        s.key == "log.file" || s.key == "exchange.memory_dir")
      continue;
    if (const auto refused = refuse_irregular(path))
      return bad_config(s.key + ": " + refused->text);
  }
  return std::nullopt;
}

std::string toml_value(const Setting& s) {
  const std::string value = s.get();
  if (s.kind == SettingKind::boolean || s.kind == SettingKind::integer ||
      s.kind == SettingKind::number)
    return value;
  const auto quote = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + "\"";
  };
  if (s.kind == SettingKind::text) return quote(value);
  std::string list;
  for (std::size_t start = 0; start < value.size();) {
    const std::size_t comma = std::min(value.find(',', start), value.size());
    list += (list.empty() ? "" : ", ") + quote(value.substr(start, comma - start));
    start = comma + 1;
  }
  return "[" + list + "]";
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (equals != std::string::npos && (name.starts_with("GOSSIPD_") || name == "HOME" ||
                                        name == "XDG_STATE_HOME" || tells_ordinal(name)))
      environment[name] = text.substr(equals + 1);
  }
  return environment;
}

Result<CommandLine> read_command_line(const std::vector<std::string>& arguments,
                                      const Environment& environment) {
  CommandLine result;
  DaemonConfig& config = result.config;
  const std::vector<Setting> settings = settings_of(config);

  Given given;
  Result<std::string> help = read_flags(arguments, settings, given);
  if (!help) return help.error();
  if (given.version) help.value() = std::string("gossipd ") + GOSSIPD_VERSION + "\n";
  if (!help->empty()) {
    result.action = CommandLine::Action::print_and_exit;
    result.output = *help;
    return result;
  }

  const auto variable = environment.find("GOSSIPD_CONFIG");
  if (given.config_file.empty() && variable != environment.end())
    given.config_file = variable->second;
  const JoinFrom join = join_from(given, environment);
  if (!given.config_file.empty())
    if (auto error = read_node_file(given.config_file, settings, join == JoinFrom::node_file))
      return *error;
  if (auto error =
          read_environment(environment, settings, join == JoinFrom::environment, result.warnings))
    return *error;
  for (const std::string& text : given.overrides)
    if (join != JoinFrom::flag || !text.starts_with("join="))
      if (auto error = apply_override(text, settings)) return *error;
  for (const auto& [key, value] : given.by_key) {
    const Setting* setting = find(settings, key);
    if (const auto refused = setting->set(value))
      return bad_config("--" + setting->flag + ": " + *refused);
  }

  for (const Setting& s : settings)
    if (!s.is_path && !is_utf8(s.get()))
      return bad_config(s.key + ": '" + printable(s.get()) +
                        "' holds bytes that are no UTF-8; write it again, in UTF-8");
  if (auto error = check_files(settings)) return *error;
  const auto ordinal = read_ordinal(config.bootstrap, environment, own_host_name());
  if (!ordinal) return ordinal.error();
  config.ordinal = *ordinal;
  config.name_given = !config.name.empty();
  if (config.name.empty()) config.name = own_host_name();
  if (config.state_dir.empty()) {
    const Result<std::string> chosen = default_state_dir(environment);
    if (!chosen) return chosen.error();
    config.state_dir = *chosen;
  }
  std::error_code unknown;  // then it stays relative
  if (const auto whole = std::filesystem::absolute(config.state_dir, unknown); !unknown)
    config.state_dir = whole.lexically_normal().string();
  if (auto error = look_for_invite(config, result.warnings)) return *error;
  if (auto error = check_whole(config)) return *error;
  for (std::string& warning : warn_of_unused(config)) result.warnings.push_back(std::move(warning));
  if (given.check_config) result.action = CommandLine::Action::check_config;
  // `settings` points into `config`, which moves with the result: nothing may use it from here on.
  return result;
}

std::string to_toml(const DaemonConfig& config) {
  DaemonConfig copy = config;
  const std::vector<Setting> settings = settings_of(copy);
  std::string text, section;
  for (const Setting& s : settings) {
    const std::size_t dot = s.key.find('.');
    const std::string table = dot == std::string::npos ? std::string() : s.key.substr(0, dot);
    if (table != section) text += "\n[" + table + "]\n";
    section = table;
    if (s.get().empty()) text += "# ";
    text +=
        (dot == std::string::npos ? s.key : s.key.substr(dot + 1)) + " = " + toml_value(s) + "\n";
  }
  return text;
}

void keep_seeds_of_lost_invite(DaemonConfig& now, const DaemonConfig& before) {
  if (!now.invite_missing) return;
  if (before.invite)
    for (const Endpoint& seed : before.invite->seeds)
      if (now.join.size() < seeds_max && std::ranges::find(now.join, seed) == now.join.end())
        now.join.push_back(seed);
  if (now.join.empty()) now.join = before.join;
}

std::string own_host_name() {
  char name[name_bytes_max + 1] = {};
  if (::gethostname(name, name_bytes_max) != 0 || name[0] == '\0') return "node";
  const std::string full(name);
  return full.substr(0, full.find('.'));
}

std::string shard_words(const DaemonConfig& config) {
  if (config.shard_count == 0) return "auto";
  return std::to_string(config.shard_index + 1) + '/' + std::to_string(config.shard_count);
}

bool is_loopback(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "::1" ||
         endpoint.host.starts_with("127.");
}

}  // namespace gossipd
