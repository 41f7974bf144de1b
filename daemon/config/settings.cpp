#include "daemon/config/settings.h"

#include <algorithm>
#include <charconv>

#include "core/balance/settings.h"
#include "core/exchange/settings.h"
#include "core/membership/settings.h"
#include "daemon/config/invite_source.h"
#include "models/devices/worker_pool.h"

namespace gossipd {
namespace {

bool read_all(std::string_view text, std::uint32_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

// Addresses and, in the place of one, an invite.
SettingRefused read_seeds(std::string_view given, DaemonConfig& config) {
  std::vector<Endpoint> seeds;
  std::optional<Invite> invite;
  std::optional<Error> missing;
  while (!given.empty()) {
    const std::size_t comma = std::min(given.find(','), given.size());
    const std::string one(given.substr(0, comma));
    given.remove_prefix(std::min(comma + 1, given.size()));
    Endpoint endpoint;
    const bool cut = one.starts_with("gossip1") && one.ends_with("...");  // as pages write it
    if (cut || names_invite(one)) {
      if (invite || missing) return "has more than one invite; one is enough";
      const Result<Invite> taken = take_invite(one);
      if (!taken && taken.error().code == "key-missing") {
        missing = taken.error();  // what becomes of it is for the state directory to say
        continue;
      }
      if (!taken) return taken.error().text;
      invite = *taken;
      seeds.insert(seeds.end(), invite->seeds.begin(), invite->seeds.end());
    } else if (parse_endpoint(one, peer_port_default, endpoint)) {
      seeds.push_back(endpoint);
    } else if (one.starts_with("gossip1")) {
      return take_invite(one).error().text;
    } else {
      return bad_endpoint(one);
    }
    if (seeds.size() > seeds_max)
      return "has more than " + std::to_string(seeds_max) + " addresses; a few are enough";
  }
  config.join = std::move(seeds);
  config.invite = std::move(invite);
  config.invite_missing = std::move(missing);
  return std::nullopt;
}

void add_seeds(SettingTable& table, DaemonConfig& config) {
  DaemonConfig* c = &config;
  table.add(
      "join", "join", "HOST[:PORT]|INVITE", "",
      "a member to join the cluster through, or an invite (`gossipctl invite`) as it is, as @FILE "
      "or as - for standard input; may be repeated",
      SettingKind::list,
      [c](std::string_view given) -> SettingRefused { return read_seeds(given, *c); },
      [c] {
        std::string joined;
        for (const Endpoint& e : c->join) joined += (joined.empty() ? "" : ",") + to_string(e);
        return joined;
      });
}

void add_rest_address(SettingTable& table, std::string key, std::string flag, std::string& target,
                      std::string help) {
  std::string* t = &target;
  table.add(
      std::move(key), std::move(flag), "HOST:PORT|unix:PATH", "", std::move(help),
      SettingKind::text,
      [t](std::string_view given) -> SettingRefused {
        Endpoint endpoint;
        const bool unix_socket = given.starts_with("unix:") && given.size() > 5;
        if (!unix_socket && given != "none" &&
            !parse_endpoint(std::string(given), rest_port_default, endpoint))
          return quoted(given) +
                 " is no REST address; write HOST:PORT, [::1]:7611, unix:/run/gossipd/rest.sock or "
                 "none";
        *t = unix_socket || given == "none" ? std::string(given) : to_string(endpoint);
        return std::nullopt;
      },
      [t] { return *t; });
}

void add_shard(SettingTable& table, std::string key, std::string flag, std::uint32_t& index,
               std::uint32_t& count, std::string help) {
  std::uint32_t* i = &index;
  std::uint32_t* n = &count;
  table.add(
      std::move(key), std::move(flag), "I/N", "", std::move(help), SettingKind::text,
      [i, n](std::string_view given) -> SettingRefused {
        if (given == "auto") return *i = *n = 0, std::nullopt;
        const std::size_t slash = given.find('/');
        std::uint32_t part = 0, parts = 0;
        if (slash == std::string_view::npos || !read_all(given.substr(0, slash), part) ||
            !read_all(given.substr(slash + 1), parts) || part < 1 || parts < 1 || part > parts ||
            parts > 1'000'000)
          return quoted(given) +
                 " is no shard; write auto, or I/N with 1 <= I <= N, for example 2/3 for the "
                 "second of three";
        *i = part - 1;
        *n = parts;
        return std::nullopt;
      },
      [i, n] {
        return *n == 0 ? std::string("auto") : std::to_string(*i + 1) + "/" + std::to_string(*n);
      });
}

void add_node(SettingTable& table, DaemonConfig& c) {
  table.text("name", "name", "NAME", c.name,
             "the node's name in lists, kept over restarts (default: the host's name)");
  table.path("job", "job", "FILE", c.job_file,
             "job file; founds a cluster, or must match the job of the cluster joined");
  add_seeds(table, c);
  table.text("bootstrap", "bootstrap", "auto|N", c.bootstrap,
             "this node's number in a fixed set whose members `join` names: 0 founds the cluster "
             "once all others have said that they have none, the others join; auto: as Slurm, "
             "a Kubernetes Job or the host's name tells");
  table.path("key_file", "key-file", "FILE", c.key_file,
             "the cluster's secret (default STATE/cluster.key); `none`: plain text, loopback only");
  table.directory("state_dir", "state-dir", c.state_dir,
                  "directory of this node's identity, job and checkpoints (default "
                  "/var/lib/gossipd for root, else ~/.local/state/gossipd or "
                  "$XDG_STATE_HOME/gossipd)");
  table.path("data", "data", "DIR", c.data_dir, "directory of the job's data files");
  table.choice(
      "until", "until", c.until, {"stopped", "finished"},
      "finished: gossipd ends with the job, with exit code 0, or 3 if the job failed; 143 or 130: "
      "a signal ended it before");
  add_shard(table, "shard", "shard", c.shard_index, c.shard_count,
            "`auto`: all data in this node's own order, or its part of a set that nodes divide; "
            "I/N: the I-th of N equal parts");
  table.endpoint(
      "listen", "listen", peer_port_default, c.listen,
      "address for peers (default *:7610, or 127.0.0.1:7610 without key and certificates)");
  table.endpoint("advertise", "advertise", peer_port_default, c.advertise,
                 "address where peers reach this node, if it differs from `listen`");
}

void add_peer_tls(SettingTable& table, DaemonConfig& c) {
  table.path("peer_tls.ca", "", "FILE", c.peer_tls.ca,
             "PEM: certificates in place of a key; the authority that signs them, optionally with "
             "its revocation list");
  table.path("peer_tls.certificate", "", "FILE", c.peer_tls.certificate,
             "PEM: this node's certificate for TLS client and server, then intermediate ones");
  table.path("peer_tls.key", "", "FILE", c.peer_tls.key,
             "PEM: the certificate's private key, mode 0600");
}

void add_rest(SettingTable& table, DaemonConfig& c) {
  add_rest_address(table, "rest.listen", "rest", c.rest,
                   "REST address; beyond loopback REST uses https and needs a token");
  table.path("rest.token_file", "rest-token-file", "FILE", c.rest_token_file,
             "file with the token that REST clients must present");
  table.choice("rest.tls", "", c.rest_tls, {"auto", "on"},
               "auto: https beyond loopback; on: on loopback as well");
  table.path("rest.certificate", "", "FILE", c.rest_certificate,
             "PEM: the certificate of REST (default: self-made, STATE/rest-certificate.pem)");
  table.path("rest.key", "", "FILE", c.rest_key, "PEM: the private key of `rest.certificate`");
}

void add_metrics(SettingTable& table, DaemonConfig& c) {
  table.endpoint(
      "metrics.listen", "metrics-listen", metrics_port_default, c.metrics_listen,
      "address that serves only /metrics, /livez and /readyz, in plain text to everybody "
      "(default: none)");
}

void add_trainer(SettingTable& table, DaemonConfig& c) {
  table.text(
      "trainer.device", "device", "DEVICE", c.device,
      "auto, cpu, cuda or cuda:N; cuda:all or a list (cuda:0,cuda:1) makes several one node");
  table.path("trainer.socket", "", "FILE", c.trainer_socket,
             "Unix socket at which the process that trains an external job attaches (default "
             "STATE/trainer.sock); `none`: there is none");
  table.integer("trainer.threads", "threads", "", c.threads, 0, 1024,
                "CPU threads for tensor arithmetic; 0: one per core");
  table.number("trainer.min_step_ms", "trainer-min-step-ms", "ms", c.min_step_ms, 0, setting_day_ms,
               "minimum duration of a step, to leave the device to others");
  table.integer("trainer.nice", "", "", c.nice, 0, 19,
                "niceness of the training thread, which yields to the protocol");
  table.integer("trainer.loader_threads", "", "", c.loader_threads, 0, 64,
                "threads that prepare samples; 0: one, or for images half of the cores, at most 8");
  table.integer("trainer.image_cache_mb", "", "MB", c.image_cache_mb, 0, 1u << 22,
                "decoded images kept in memory, for training and held-out set each; others are "
                "decoded at each visit");
}

void add_checkpoint(SettingTable& table, DaemonConfig& c) {
  table.number(
      "checkpoint.every_s", "", "s", c.checkpoint_every_s, 0.1, setting_day_ms,
      "interval between checkpoints; shorter in the first minute (1, 2, 4 s and so on), "
      "and 20 times as long as writing one takes where that is longer, but no more than 10 "
      "minutes for it");
  table.boolean("checkpoint.best", "", c.checkpoint_best,
                "also keep the model with the best held-out accuracy");
}

void add_log(SettingTable& table, DaemonConfig& c) {
  table.choice("log.level", "log-level", c.log_level, {"debug", "info", "warning", "error"},
               "lowest level to write");
  table.path("log.file", "log-file", "FILE", c.log_file,
             "file for the log (default: standard error)");
  table.one_of("log.format", "log-format", c.log_format, {"text", "logfmt", "json"},
               "how a line of the log is written; logfmt and json always parse");
  table.boolean("log.core_dumps", "", c.core_dumps,
                "let a crash write its memory, including the cluster's secret, to a core file");
}

}  // namespace

std::vector<Setting> settings_of(DaemonConfig& config) {
  std::vector<Setting> settings;
  SettingTable table(settings);
  add_node(table, config);
  add_peer_tls(table, config);
  add_rest(table, config);
  add_metrics(table, config);
  add_trainer(table, config);
  add_checkpoint(table, config);
  add_log(table, config);
  for (Setting& s : exchange_settings(config.exchange)) settings.push_back(std::move(s));
  table.integer("exchange.threads", "", "", config.exchange_threads, 0, worker_threads_max,
                "threads that compute an exchange, which changes no result; 0: a quarter of the "
                "cores, at most 4");
  table.path("exchange.memory_dir", "", "DIR", config.exchange_memory_dir,
             "directory on a fast disk that holds the exchange's copies of the model, for a model "
             "that main memory is too small for (default: main memory)");
  for (Setting& s : balance_settings(config.balance)) settings.push_back(std::move(s));
  for (Setting& s : membership_settings(config.membership)) settings.push_back(std::move(s));
  return settings;
}

std::string environment_name(std::string_view key) {
  std::string name = "GOSSIPD_";
  for (const char c : key)
    name += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

}  // namespace gossipd
