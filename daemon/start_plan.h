// daemon/start_plan.h - what a daemon sets out to do: found a cluster, join one, or go on as the
// member it was.
//
// Decided from the configuration and what lies in the state directory, before anything runs. Every
// combination that cannot work is refused here, with what to change. Promise kept here: a node
// never founds a cluster by accident (core is only given an identity to found with when --job says
// so).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "daemon/config/config.h"
#include "daemon/disk/state_store.h"
#include "models/job/job.h"
#include "net/peer/keyring.h"

namespace gossipd {

struct KnownJob {
  std::string document;  // canonical
  JobHash hash{};
  Samples budget_samples = 0;
  std::string name;
  JobFile file;           // of a TorchScript job
  std::string file_from;  // where the job file says that it is; empty: not said here
  bool starts_from_file = false;
  std::string start_from;    // likewise
  bool is_external = false;  // a process that attaches makes the steps
};

struct StartPlan {
  enum class Kind { found, join, rejoin };
  Kind kind = Kind::join;
  NodeState state;              // as core is to get it
  ClusterId founds{};           // a joiner founds it where nobody has a cluster; 0: it only joins
  std::optional<KnownJob> job;  // from the file or from disk
  std::optional<Keyring> keys;  // without these and certificates: plain, loopback only
  std::optional<PeerCertificates> certificates;
  std::string key_written;  // not empty: a new key was written to this file
  Endpoint listen;
  std::vector<std::string> warnings;
};
[[nodiscard]] const char* to_string(StartPlan::Kind);

// Of all that the configuration listens on, for a new node, which has written nothing yet. Code
// "listen".
[[nodiscard]] std::optional<Error> refuse_busy_ports(const DaemonConfig&);

// Loads all of the job's data: what is damaged or of another shape shows only then. Codes
// "no-data", which says to `start` with --data, and "bad-data".
[[nodiscard]] std::optional<Error> check_data(const Job&, const DaemonConfig&,
                                              const std::string& start);

// A shard given by hand that the job does not leave to its nodes, or for which `samples` do not
// suffice; 0: how many there are is not known yet. Code "bad-config".
[[nodiscard]] std::optional<Error> check_shard(const Job&, const DaemonConfig&,
                                               std::size_t samples = 0);

// What a new node cannot begin with, found before anything is written: nothing to do, a joiner's
// key file that is not there, a founder's data. Reads all of the data's files. Codes "bad-config",
// "bad-toml", "no-data", "bad-data".
[[nodiscard]] std::optional<Error> refuse_new_node(const DaemonConfig&);

// The segments of the first trainer, kept as a file of the job's in the store. Waits for it.
using FirstSegments = std::function<Result<JobFile>(const std::string& job_name)>;

// Reads the job file and the key or certificates; founding may write a new key file. Codes
// "bad-config", "bad-state", "other-job", "key-…", "certificate", "bad-toml".
[[nodiscard]] Result<StartPlan> make_start_plan(const DaemonConfig&, const StateStore&,
                                                const FirstSegments& = nullptr);

}  // namespace gossipd
