// daemon/rest/view.h - everything that can be looked at from outside: the core's view and what the
// daemon adds.
//
// A plain value, made for one request and thrown away. REST and metrics render it; they never see
// the node, the trainer or the transport themselves.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/node.h"
#include "daemon/rest/history.h"
#include "models/data/division.h"
#include "models/networks/figures.h"

namespace gossipd {

struct EvaluationView : Figures {
  Step step = 0;
  Samples cluster_samples = 0;
  double age_s = 0;
};

struct CheckpointView {
  std::string path;
  double written_at_s = 0;  // seconds since 1970
  Step step = 0;
  Samples own_samples = 0;
  std::uint64_t bytes = 0;
  std::optional<double> accuracy;
  std::optional<double> evaluation_loss;
};

// One TCP connection, as the transport counts it: TLS, framing and control messages included.
struct SessionView {
  Endpoint address;  // dialled, or the other end's
  bool outbound = false;
  double age_s = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

struct WireView {
  // since the process started, closed and failed sessions included
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t sessions_opened = 0;
  std::map<std::string, std::uint64_t> sessions_closed;  // by reason code
  std::map<std::string, std::uint64_t> dials_failed;
  std::map<std::string, std::uint64_t> inbound_rejected;
  std::vector<SessionView> sessions;
};

// How long the protocol thread was kept by one event or one piece of work, in which it hears and
// answers nobody.
struct StallView {
  Duration longest{};
  std::uint64_t long_ones = 0;  // beyond stall_long
  void note(Duration kept);
};
inline constexpr Duration stall_long = std::chrono::milliseconds(100);

// What the protocol thread has given to its disk writer, and checkpoints under way.
struct DiskView {
  std::string writing;      // the file under way; empty: none
  double writing_s = 0;     // for so long
  double checkpoint_s = 0;  // for so long a checkpoint is under way; 0: none
  double slowest_s = 0;     // the longest write so far, the one under way included
  std::size_t waiting = 0;
  std::uint64_t written = 0, failed = 0;
  std::uint64_t replaced = 0;  // by a newer state, before they were written
  bool slow = false;           // a write takes long, or did within the last half minute
};
[[nodiscard]] bool takes_long(const DiskView&);
inline constexpr double disk_slow_after_s = 5;         // of a small file
inline constexpr double checkpoint_slow_after_s = 30;  // of a whole model

// Ids only: a secret never leaves its file and the transport.
struct KeysView {
  struct Key {
    std::uint64_t id = 0;
    bool in_use = false;       // what this node dials with
    std::size_t sessions = 0;  // open under it
  };
  std::vector<Key> keys;  // the one in use first
  std::vector<std::uint64_t> retired;
};

struct TrainerView {
  // none, preparing, idle, holding, training, finished, not_finite, failed
  std::string state = "none";
  std::string device;
  Samples shard_samples = 0;
  std::optional<DivisionStatus> division;  // of a set that the nodes divide
  Samples data_position = 0;
  std::string failure;
};

struct JobView {
  JobHash hash{};
  std::string name;
  std::string document;  // canonical TOML
};

struct Warning {
  double age_s = 0;
  std::string text;
};

struct DaemonView {
  NodeView node;
  double refusals_now_s = 0;  // the core's clock, for the ages of refusals
  std::string version;
  Endpoint address;  // where peers reach this node
  std::vector<Endpoint> listening;
  std::string state_dir;
  double uptime_s = 0;
  StallView stalls;
  DiskView disk;
  std::uint64_t model_floats = 0;  // P; 0 until the model stands
  TrainerView trainer;
  WireView wire;
  std::optional<JobView> job;
  std::optional<EvaluationView> evaluation;
  std::optional<Figures> best;
  std::map<std::string, CheckpointView> checkpoints;  // "current", "best", "final"
  std::uint64_t checkpoints_failed = 0;
  std::vector<Warning> warnings;  // newest last
  bool stopping = false;
};
inline constexpr std::size_t warnings_max = 32;

// The members among whom a shared set is divided, by id: those that train or have just ended, this
// node with them. A suspect still counts, so that a lost packet moves nothing; who paused, left or
// failed does not.
[[nodiscard]] std::vector<DivisionMember> who_divides(const NodeView& node);
// May clients use this node? Empty when yes, else the reason (what /readyz answers).
[[nodiscard]] std::string not_ready_reason(const DaemonView&);
// What sending the whole fp32 model to every neighbour at every step would have taken so far.
[[nodiscard]] std::uint64_t dense_baseline_bytes(const DaemonView&);

// Response bodies, JSON.
[[nodiscard]] std::string status_json(const DaemonView&);
[[nodiscard]] std::string members_json(const DaemonView&);
[[nodiscard]] std::string links_json(const DaemonView&);
[[nodiscard]] std::string job_json(const DaemonView&);  // `job` must be there
[[nodiscard]] std::string history_json(const History&, const DaemonView&);
[[nodiscard]] std::string checkpoint_json(const CheckpointView&);
[[nodiscard]] std::string keys_json(const KeysView&);
// A problem's "detail" for a node that is not ready, and {"ready":true,…} otherwise.
[[nodiscard]] std::string ready_json(const DaemonView&);

// "2024-05-01T12:00:00Z"
[[nodiscard]] std::string utc_time(double seconds_since_1970);

}  // namespace gossipd
