// daemon/config/config.h - everything a node may choose for itself, and where each choice came
// from.
//
// Order: flag > GOSSIPD_* environment > node file > default. One table of settings (settings.cpp)
// serves all four, `--set`, `--check-config` and the reference in README.md, so that they cannot
// disagree. Every mistake is reported with what, why and the way out. A plain value; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/node.h"
#include "daemon/log/log_format.h"
#include "net/peer/certificates.h"
#include "net/peer/invite.h"

namespace gossipd {

inline constexpr int exit_job_failed = 3;  // with `until` "finished"
inline constexpr std::uint16_t metrics_port_default = 9464;
inline constexpr int exit_bad_config = 78;  // EX_CONFIG

struct DaemonConfig {
  std::string name;              // default: the host's name
  std::string job_file;          // founds a cluster, or must agree with the one that is joined
  std::vector<Endpoint> join;    // seeds, an invite's included
  std::optional<Invite> invite;  // given in `join`: the key too
  // `join` names an invite that is not there; only a member may do without.
  std::optional<Error> invite_missing;
  std::string key_file;           // "": STATE/cluster.key; "none": plain, loopback only
  PeerCertificateFiles peer_tls;  // instead of a key: all three, or none
  std::string state_dir;
  std::string data_dir;
  std::uint32_t shard_index = 0;  // 0-based here, 1-based in words: "1/3"
  std::uint32_t shard_count = 0;  // 0: auto, all of the data in an order of the node's own
  // default: every address with a key or certificates, loopback without
  std::optional<Endpoint> listen;
  std::optional<Endpoint> advertise;
  std::string rest = "127.0.0.1:7611";  // HOST:PORT, unix:PATH or none
  std::string rest_token_file;          // needed when `rest` is not on loopback
  std::string rest_tls = "auto";        // "auto": beyond loopback; "on": also on loopback
  std::string rest_certificate;         // PEM; "": one of the node's own, in its state directory
  std::string rest_key;                 // PEM, of the certificate

  std::string trainer_socket;  // where trainers of an external job attach; "": STATE/trainer.sock
  std::string device = "auto";
  std::uint32_t threads = 0;  // 0: one per core
  double min_step_ms = 0;
  std::uint32_t nice = 5;
  std::uint32_t loader_threads = 0;  // 0: by the kind of data
  std::uint32_t image_cache_mb = 1024;

  double checkpoint_every_s = 30;
  bool checkpoint_best = true;
  bool core_dumps = false;

  std::string log_level = "info";
  std::string log_file;  // "": standard error
  LogFormat log_format = LogFormat::text;

  MembershipPolicy membership;
  ExchangePolicy exchange;
  std::uint32_t exchange_threads = 0;  // 0: by the machine
  std::string exchange_memory_dir;     // "": main memory
  BalancePolicy balance;

  std::string until = "stopped";  // or "finished": the process ends with the job
  // Of a fixed set of nodes with one command line: "", "auto" or this node's number.
  std::string bootstrap;
  std::optional<std::uint32_t> ordinal;    // that `bootstrap` means; 0 founds the cluster
  std::optional<Endpoint> metrics_listen;  // /metrics alone, plain, for everybody
  bool name_given = false;                 // `name` is no default
  // That a job with epochs counts; main() fills it in.
  std::optional<Samples> epoch_samples;
};

// What main() does with a command line.
struct CommandLine {
  enum class Action { run, check_config, print_and_exit };
  Action action = Action::run;
  DaemonConfig config;
  std::string output;                 // print_and_exit: help or version
  std::vector<std::string> warnings;  // for example a GOSSIPD_ variable that names no setting
};

using Environment = std::map<std::string, std::string>;  // GOSSIPD_* and what the defaults look at
[[nodiscard]] Environment process_environment();

// Codes "usage" for a flag that does not exist, "io-error" for a node file that cannot be read now,
// "bad-config" for everything else.
[[nodiscard]] Result<CommandLine> read_command_line(const std::vector<std::string>& arguments,
                                                    const Environment&);

// The effective configuration as a node file: what `--check-config` prints. Holds no secrets, only
// their paths.
[[nodiscard]] std::string to_toml(const DaemonConfig&);

// Of an invite that is gone since `before`, in place of which `now` has nothing, the seeds stay.
void keep_seeds_of_lost_invite(DaemonConfig& now, const DaemonConfig& before);

// The shard as it is given: "auto", or "2/3".
[[nodiscard]] std::string shard_words(const DaemonConfig&);

[[nodiscard]] bool is_loopback(const Endpoint&);
// The first label of it; "node" where it has none.
[[nodiscard]] std::string own_host_name();

}  // namespace gossipd
