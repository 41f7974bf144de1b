#include "daemon/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace gossipd {

namespace {

using Refused = std::optional<std::string>;  // reason and way out; nothing when the value was taken

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// The shortest text that reads back as the same value.
std::string text_of(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc{} ? std::string(buffer, end) : std::string();
}

std::string range_of(double minimum, double maximum) { return "from " + text_of(minimum) + " to " + text_of(maximum); }

template <typename T>
bool read_all(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

class Table {
 public:
  explicit Table(std::vector<Setting>& out) : out_(out) {}

  void text(std::string key, std::string flag, std::string value, std::string& target, std::string help) {
    std::string* t = &target;
    add(std::move(key), std::move(flag), std::move(value), "", std::move(help), SettingKind::text,
        [t](std::string_view given) -> Refused {
          if (given.size() > 4096) return "is longer than 4096 bytes; shorten it";
          *t = std::string(given);
          return std::nullopt;
        },
        [t] { return *t; });
  }

  void path(std::string key, std::string flag, std::string value, std::string& target, std::string help) {
    text(std::move(key), std::move(flag), std::move(value), target, std::move(help));
    out_.back().is_path = true;
  }

  void choice(std::string key, std::string flag, std::string& target, std::vector<std::string> choices, std::string help) {
    std::string names;
    for (const std::string& c : choices) names += (names.empty() ? "" : "|") + c;
    std::string* t = &target;
    add(std::move(key), std::move(flag), names, "", std::move(help), SettingKind::text,
        [t, choices, names](std::string_view given) -> Refused {
          if (std::find(choices.begin(), choices.end(), given) == choices.end())
            return quoted(given) + " is none of " + names + "; choose one of them";
          *t = std::string(given);
          return std::nullopt;
        },
        [t] { return *t; });
  }

  void boolean(std::string key, std::string flag, bool& target, std::string help) {
    bool* t = &target;
    add(std::move(key), std::move(flag), "on|off", "", std::move(help), SettingKind::boolean,
        [t](std::string_view given) -> Refused {
          const bool on = given == "on" || given == "true" || given == "yes" || given == "1";
          const bool off = given == "off" || given == "false" || given == "no" || given == "0";
          if (!on && !off) return quoted(given) + " is neither on nor off; write on or off (true or false in a file)";
          *t = on;
          return std::nullopt;
        },
        [t] { return std::string(*t ? "true" : "false"); });
  }

  template <typename T>
  void integer(std::string key, std::string flag, std::string unit, T& target, std::uint64_t minimum, std::uint64_t maximum,
               std::string help) {
    T* t = &target;
    add(std::move(key), std::move(flag), "N", std::move(unit), std::move(help), SettingKind::integer,
        [t, minimum, maximum](std::string_view given) -> Refused {
          std::uint64_t number = 0;
          if (!read_all(given, number) || number < minimum || number > maximum)
            return quoted(given) + " is not a whole number from " + std::to_string(minimum) + " to " +
                   std::to_string(maximum) + "; write one";
          *t = static_cast<T>(number);
          return std::nullopt;
        },
        [t] { return std::to_string(*t); });
  }

  void number(std::string key, std::string flag, std::string unit, double& target, double minimum, double maximum,
              std::string help) {
    double* t = &target;
    add(std::move(key), std::move(flag), "X", std::move(unit), std::move(help), SettingKind::number,
        [t, minimum, maximum](std::string_view given) -> Refused {
          double number = 0;
          if (!read_all(given, number) || !std::isfinite(number) || number < minimum || number > maximum)
            return quoted(given) + " is not a number " + range_of(minimum, maximum) + "; write one";
          *t = number;
          return std::nullopt;
        },
        [t] { return text_of(*t); });
  }

  void milliseconds(std::string key, Duration& target, double minimum, double maximum, std::string help) {
    Duration* t = &target;
    add(std::move(key), "", "X", "ms", std::move(help), SettingKind::number,
        [t, minimum, maximum](std::string_view given) -> Refused {
          double number = 0;
          if (!read_all(given, number) || !std::isfinite(number) || number < minimum || number > maximum)
            return quoted(given) + " is not a number of milliseconds " + range_of(minimum, maximum) + "; write one";
          *t = from_seconds(number / 1e3);
          return std::nullopt;
        },
        [t] { return text_of(seconds(*t) * 1e3); });
  }

  void codec(std::string key, Codec& target, std::string help) {
    Codec* t = &target;
    add(std::move(key), "", "CODEC", "", std::move(help), SettingKind::text,
        [t](std::string_view given) -> Refused {
          const std::optional<Codec> codec = parse_codec(std::string(given));
          if (!codec)
            return quoted(given) + " is no codec; use fp32, bf16, int8, int4, ternary, top_k or top_k:KEEP (entries of 1024)";
          *t = *codec;
          return std::nullopt;
        },
        [t] {
          std::string name = to_string(t->id);
          if (t->id == CodecId::top_k) name += ":" + std::to_string(t->keep);
          return name;
        });
  }

  void endpoint(std::string key, std::string flag, std::uint16_t port, std::optional<Endpoint>& target, std::string help) {
    std::optional<Endpoint>* t = &target;
    add(std::move(key), std::move(flag), "HOST[:PORT]", "", std::move(help), SettingKind::text,
        [t, port](std::string_view given) -> Refused {
          Endpoint endpoint;
          const std::string every = given.starts_with(":") && !given.starts_with("::") ? "*" : "";  // ":7610"
          if (!parse_endpoint(every + std::string(given), port, endpoint)) return bad_endpoint(given);
          *t = endpoint;
          return std::nullopt;
        },
        [t] { return *t ? to_string(**t) : std::string(); });
  }

  void rest_address(std::string key, std::string flag, std::string& target, std::string help) {
    std::string* t = &target;
    add(std::move(key), std::move(flag), "HOST:PORT|unix:PATH", "", std::move(help), SettingKind::text,
        [t](std::string_view given) -> Refused {
          Endpoint endpoint;
          const bool unix_socket = given.starts_with("unix:") && given.size() > 5;
          if (!unix_socket && given != "none" && !parse_endpoint(std::string(given), rest_port_default, endpoint))
            return quoted(given) + " is no REST address; write HOST:PORT, unix:/run/gossipd.sock or none";
          *t = unix_socket || given == "none" ? std::string(given) : to_string(endpoint);
          return std::nullopt;
        },
        [t] { return *t; });
  }

  void endpoints(std::string key, std::string flag, std::vector<Endpoint>& target, std::string help) {
    std::vector<Endpoint>* t = &target;
    add(std::move(key), std::move(flag), "HOST[:PORT]", "", std::move(help), SettingKind::list,
        [t](std::string_view given) -> Refused { return read_endpoints(given, *t); },
        [t] {
          std::string joined;
          for (const Endpoint& e : *t) joined += (joined.empty() ? "" : ",") + to_string(e);
          return joined;
        });
  }

  void shard(std::string key, std::string flag, std::uint32_t& index, std::uint32_t& count, std::string help) {
    std::uint32_t* i = &index;
    std::uint32_t* n = &count;
    add(std::move(key), std::move(flag), "I/N", "", std::move(help), SettingKind::text,
        [i, n](std::string_view given) -> Refused {
          const std::size_t slash = given.find('/');
          std::uint32_t part = 0, parts = 0;
          if (slash == std::string_view::npos || !read_all(given.substr(0, slash), part) ||
              !read_all(given.substr(slash + 1), parts) || part < 1 || parts < 1 || part > parts || parts > 1'000'000)
            return quoted(given) + " is no shard; write I/N with 1 <= I <= N, for example 2/3 for the second of three";
          *i = part - 1;
          *n = parts;
          return std::nullopt;
        },
        [i, n] { return std::to_string(*i + 1) + "/" + std::to_string(*n); });
  }

 private:
  static Refused bad_endpoint(std::string_view given) {
    return quoted(given) + " is no address; write HOST, HOST:PORT, 10.0.0.1:7610 or [::1]:7610";
  }

  static Refused read_endpoints(std::string_view given, std::vector<Endpoint>& out) {
    std::vector<Endpoint> endpoints;
    while (!given.empty()) {
      const std::size_t comma = std::min(given.find(','), given.size());
      const std::string one(given.substr(0, comma));
      given.remove_prefix(std::min(comma + 1, given.size()));
      Endpoint endpoint;
      if (!parse_endpoint(one, peer_port_default, endpoint)) return bad_endpoint(one);
      endpoints.push_back(endpoint);
      if (endpoints.size() > seeds_max) return "has more than " + std::to_string(seeds_max) + " addresses; a few are enough";
    }
    out = std::move(endpoints);
    return std::nullopt;
  }

  void add(std::string key, std::string flag, std::string value, std::string unit, std::string help, SettingKind kind,
           std::function<Refused(std::string_view)> set, std::function<std::string()> get) {
    out_.push_back({std::move(key), std::move(flag), std::move(value), std::move(unit), std::move(help), kind,
                    std::move(set), std::move(get)});
  }

  std::vector<Setting>& out_;
};

constexpr double day_ms = 24.0 * 3600 * 1000;

void add_node(Table& table, DaemonConfig& c) {
  table.text("name", "name", "NAME", c.name, "what members lists call this node (default: the host's name)");
  table.path("job", "job", "FILE", c.job_file, "job file: founds a cluster, or must agree with the one joined");
  table.endpoints("join", "join", c.join, "a member to join the cluster through; may be repeated");
  table.path("key_file", "key-file", "FILE", c.key_file,
             "the cluster's secret (default STATE/cluster.key; `none`: plain, loopback only)");
  table.path("state_dir", "state-dir", "DIR", c.state_dir, "identity, job and checkpoints of this node");
  table.path("data", "data", "DIR", c.data_dir, "where the job's data files lie");
  table.shard("shard", "shard", c.shard_index, c.shard_count, "train on the I-th of N equal parts of the data");
  table.endpoint("listen", "listen", peer_port_default, c.listen, "for peers (default *:7610, every address; without a key 127.0.0.1:7610)");
  table.endpoint("advertise", "advertise", peer_port_default, c.advertise, "where peers reach this node, if not where it listens");
}

void add_rest(Table& table, DaemonConfig& c) {
  table.rest_address("rest.listen", "rest", c.rest, "REST address; beyond loopback a token is needed");
  table.path("rest.token_file", "rest-token-file", "FILE", c.rest_token_file, "file with the token that REST clients must show");
}

void add_trainer(Table& table, DaemonConfig& c) {
  table.text("trainer.device", "device", "DEVICE", c.device, "auto, cpu, cuda or cuda:N");
  table.integer("trainer.threads", "threads", "", c.threads, 0, 1024, "CPU threads of tensor arithmetic; 0: one per core");
  table.number("trainer.min_step_ms", "trainer-min-step-ms", "ms", c.min_step_ms, 0, day_ms,
               "a step takes at least so long: leaves the device to others");
  table.integer("trainer.nice", "", "", c.nice, 0, 19, "how far the training thread steps back behind the protocol");
}

void add_checkpoint(Table& table, DaemonConfig& c) {
  table.number("checkpoint.every_s", "", "s", c.checkpoint_every_s, 0.1, day_ms, "a checkpoint is written so often");
  table.boolean("checkpoint.best", "", c.checkpoint_best, "keep the model with the best held-out accuracy as well");
}

void add_log(Table& table, DaemonConfig& c) {
  table.choice("log.level", "log-level", c.log_level, {"debug", "info", "warning", "error"}, "the least serious lines to write");
  table.path("log.file", "log-file", "FILE", c.log_file, "where to write the log (default: standard error)");
}

void add_exchange(Table& table, ExchangePolicy& e) {
  table.boolean("exchange.enabled", "exchange", e.enabled, "off: a member that trains alone");
  table.codec("exchange.codec", e.codec, "how changes are written");
  table.codec("exchange.fine_codec", e.fine_codec, "the same for a new link, leaving and the final exchange");
  table.integer("exchange.round_steps", "", "steps", e.round_steps, 1, 1'000'000, "own steps between two looks at the model");
  table.number("exchange.threshold", "", "", e.threshold, 0, 10, "relative change of a block that is worth sending");
  table.number("exchange.threshold_power", "", "", e.threshold_power, 0, 8, "how the threshold follows the learning rate");
  table.number("exchange.threshold_floor", "", "", e.threshold_floor, 0, 1, "least part of the threshold that stays");
  table.milliseconds("exchange.heartbeat_ms", e.heartbeat, 1, day_ms, "speak at least so often, changed or not");
  table.number("exchange.mixing", "", "", e.mixing, 0, 4, "strength of mixing with neighbours");
  table.number("exchange.age_decay", "", "", e.age_decay, 0, 1000, "how fast an ageing replica loses weight");
  table.number("exchange.future_position", "", "", e.future_position, 0, 4, "strength of the future-position correction");
  table.number("exchange.drift_window_steps", "", "steps", e.drift_window_steps, 1, 1e6, "moving average behind the drift");
  table.number("exchange.joiner_weight", "", "", e.joiner_weight, 0, 1, "weight of a node that just came");
  table.integer("exchange.joiner_steps", "", "steps", e.joiner_steps, 0, 1'000'000'000, "until a joiner has full weight");
  table.number("exchange.magnitude_max", "", "", e.magnitude_max, 1e-6, 1e30, "largest single difference that is believed");
  table.integer("exchange.bulk_window_bytes", "", "bytes", e.bulk_window_bytes, 64 * 1024, std::uint64_t{1} << 32,
                "on one link's way to the socket");
  table.number("exchange.spread_bound", "", "", e.spread_bound, 1e-9, 1, "the final exchange ends below it");
  table.integer("exchange.refusals_until_quarantine", "", "", e.refusals_until_quarantine, 1, 1'000'000,
                "refused messages until a link is closed for a while");
}

void add_membership(Table& table, MembershipPolicy& m) {
  table.integer("membership.links", "", "", m.links, 1, 256, "neighbours this node tries to have");
  table.integer("membership.links_max", "", "", m.links_max, 1, 1024, "neighbours it accepts");
  table.milliseconds("membership.tick_ms", m.tick, 10, day_ms, "own record is renewed and gossiped so often");
  table.milliseconds("membership.ping_ms", m.ping, 10, day_ms, "between two pings on a link");
  table.milliseconds("membership.suspect_after_ms", m.suspect_after, 10, day_ms, "silence on a link until its node is suspected");
  table.milliseconds("membership.fail_after_ms", m.fail_after, 10, day_ms, "silence until it counts as failed");
  table.milliseconds("membership.handshake_timeout_ms", m.handshake_timeout, 10, day_ms, "for a new session to say who it is");
  table.milliseconds("membership.redial_min_ms", m.redial_min, 1, day_ms, "first pause before dialling again; doubled up to");
  table.milliseconds("membership.redial_max_ms", m.redial_max, 1, day_ms, "the longest pause before dialling again");
  table.milliseconds("membership.isolation_grace_ms", m.isolation_grace, 0, day_ms,
                     "after a restart, wait so long for known members before training alone");
  table.milliseconds("membership.leave_flush_ms", m.leave_flush, 0, day_ms, "longest wait for unpublished changes when leaving");
  table.milliseconds("membership.finish_cap_ms", m.finish_cap, 0, day_ms, "longest final exchange");
}

}  // namespace

std::vector<Setting> settings_of(DaemonConfig& config) {
  std::vector<Setting> settings;
  Table table(settings);
  add_node(table, config);
  add_rest(table, config);
  add_trainer(table, config);
  add_checkpoint(table, config);
  add_log(table, config);
  add_exchange(table, config.exchange);
  add_membership(table, config.membership);
  return settings;
}

std::string environment_name(std::string_view key) {
  std::string name = "GOSSIPD_";
  for (const char c : key) name += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

}  // namespace gossipd
