// daemon/rest/view.h - what can be looked at from outside: the core's views and what the daemon
// adds.
//
// Plain values, made for one request and thrown away. REST and metrics render them; they never see
// the node, the trainer or the transport themselves. A request asks for the slices that it shows:
// the list of a thousand members is made for /v1/members alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/node.h"
#include "daemon/disk/disk_view.h"
#include "daemon/disk/keys_view.h"
#include "daemon/rest/history.h"
#include "models/data/division.h"
#include "models/networks/figures.h"
#include "net/peer/tcp_path.h"

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
  SessionId id{};
  Endpoint address;  // dialled, or the other end's
  bool outbound = false;
  double age_s = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::optional<TcpPath> path;
};

struct WireView {
  // since the process started, closed and failed sessions included
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t sessions_opened = 0;
  std::map<std::string, std::uint64_t> sessions_closed;  // by reason code
  std::map<std::string, std::uint64_t> dials_failed;
  std::map<std::string, std::uint64_t> inbound_rejected;
  std::size_t sessions = 0;  // open now
};

// How long the protocol thread was kept by one event or one piece of work, in which it hears and
// answers nobody.
struct StallView {
  Duration longest{};
  std::uint64_t long_ones = 0;  // beyond stall_long
  void note(Duration kept);
};
inline constexpr Duration stall_long = std::chrono::milliseconds(100);

struct TrainerView {
  // none, preparing, idle, holding, training, waiting-for-trainer, finished, not-finite, failed
  std::string state = "none";
  std::string device;
  std::string device_note;  // why it is the CPU though it may be a GPU, and what to do
  Samples shard_samples = 0;
  std::optional<DivisionStatus> division;  // of a set that the nodes divide
  Samples data_position = 0;
  std::string failure;
};

struct JobView {
  JobHash hash{};
  std::string name;
  std::string document;  // canonical TOML
  std::uint64_t model_floats = 0;
};

struct Warning {
  double age_s = 0;
  std::string text;
};

// This node, without lists of members, links and sessions.
struct StatusView {
  NodeSummary node;
  double refusals_now_s = 0;  // the core's clock, for the ages of refusals
  std::string version;
  Endpoint address;  // where peers reach this node
  std::vector<Endpoint> listening;
  std::string state_dir;
  double uptime_s = 0;
  double ran_s = 0;  // with earlier processes: the clock of the history
  StallView stalls;
  DiskView disk;
  std::uint64_t model_floats = 0;  // P; 0 until the model stands
  Step exchange_period_steps = 0;  // as set
  TrainerView trainer;
  WireView wire;
  std::optional<std::string> job_name;
  std::optional<EvaluationView> evaluation;
  std::optional<Figures> best;
  std::map<std::string, CheckpointView> checkpoints;  // "current", "best", "final"
  std::uint64_t checkpoints_failed = 0;
  std::vector<Warning> warnings;  // newest last
  bool stopping = false;
};
inline constexpr std::size_t warnings_max = 32;

// May clients use this node? Empty when yes, else the reason (what /readyz answers).
[[nodiscard]] std::string not_ready_reason(const NodeSummary&, bool stopping);
// `event=progress …`: how far the job is, as words of the log.
[[nodiscard]] std::string progress_words(const StatusView&);
// What sending the whole fp32 model to every neighbour at every step would have taken so far.
[[nodiscard]] std::uint64_t dense_baseline_bytes(const StatusView&);

// Response bodies, JSON.
[[nodiscard]] std::string status_json(const StatusView&);
[[nodiscard]] std::string members_json(ClusterId, const std::vector<MemberView>&);
[[nodiscard]] std::string links_json(const std::vector<LinkView>&, const std::vector<SessionView>&,
                                     const WireView&);
[[nodiscard]] std::string job_json(const JobView&, const NodeSummary&);
[[nodiscard]] std::string history_json(const History&, const std::string& name);
[[nodiscard]] std::string checkpoint_json(const CheckpointView&);
[[nodiscard]] std::string keys_json(const KeysView&);
// For a node that is ready: {"ready":true,…}.
[[nodiscard]] std::string ready_json(Phase);

// "2024-05-01T12:00:00Z"
[[nodiscard]] std::string utc_time(double seconds_since_1970);

}  // namespace gossipd
