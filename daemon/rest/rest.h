// daemon/rest/rest.h - the daemon's HTTP face: which path answers what.
//
// Pure routing over DaemonPort, so that tests drive it with a made-up daemon. Errors are RFC 9457
// problem documents with a stable `code` and a `hint`. Loop thread only.
#pragma once

#include <functional>
#include <vector>

#include "daemon/rest/view.h"
#include "net/http/router.h"

namespace gossipd {

class Events;
class MemberHistory;

// What REST may see and ask of the daemon.
class DaemonPort {
 public:
  virtual ~DaemonPort() = default;
  // The slices of what can be looked at. Only members() and node() grow with the cluster; node()
  // counts members, members() copies their records.
  [[nodiscard]] virtual NodeSummary node() const = 0;
  [[nodiscard]] virtual StatusView status() const = 0;
  [[nodiscard]] virtual std::vector<MemberView> members() const = 0;
  [[nodiscard]] virtual std::vector<LinkView> links() const = 0;
  [[nodiscard]] virtual std::vector<SessionView> sessions() const = 0;
  [[nodiscard]] virtual WireView wire() const = 0;
  [[nodiscard]] virtual std::optional<JobView> job() const = 0;
  [[nodiscard]] virtual const History& history() const = 0;
  [[nodiscard]] virtual const MemberHistory& member_history() const = 0;
  [[nodiscard]] virtual Events& events() = 0;
  [[nodiscard]] virtual bool stopping() const = 0;

  // Errors are refusals by state: 409.
  [[nodiscard]] virtual std::optional<Error> join(std::vector<Endpoint> seeds) = 0;
  [[nodiscard]] virtual std::optional<Error> leave() = 0;
  [[nodiscard]] virtual std::optional<Error> pause() = 0;
  [[nodiscard]] virtual std::optional<Error> resume() = 0;
  [[nodiscard]] virtual std::optional<Error> extend_budget(Samples more) = 0;
  struct StartedJob {
    std::string name;
    JobHash hash{};
    std::uint64_t number = 0;  // among the cluster's jobs
  };
  // `file` lies on the daemon's machine. `done` is called once, on the loop, when the node and all
  // that it is linked to would know the job after a restart; in bounded time with code
  // "still-trying", and then status() tells how it goes on.
  using JobStarted = std::function<void(Result<StartedJob>)>;
  virtual void start_job(const std::string& file, JobStarted done) = 0;
  [[nodiscard]] virtual std::optional<Error> forget(NodeId member) = 0;
  // `done` is called once, on the loop, when the file is durable or was not written; in bounded
  // time with code "disk-slow".
  virtual void write_checkpoint(std::function<void(Result<CheckpointView>)> done) = 0;
  // `done` is called once, on the loop, in bounded time: true if a restart would know of all
  // commands so far.
  virtual void when_on_disk(std::function<void(bool)> done) = 0;
  // Errors "no-key", "certificates": the cluster has none.
  [[nodiscard]] virtual Result<KeysView> keys() const = 0;
  // `file` lies on the daemon's machine, so that no secret travels by HTTP. Errors are refusals
  // too. The keys are in force when they are on disk; then `done` is called, or in bounded time
  // with code "disk-slow".
  using KeysChanged = std::function<void(std::optional<Error>)>;
  virtual void install_key(const std::string& file, KeysChanged done) = 0;
  virtual void use_key(std::uint64_t id, KeysChanged done) = 0;
  virtual void retire_key(std::uint64_t id, KeysChanged done) = 0;
};

// `port` must outlive the router.
[[nodiscard]] HttpRouter make_rest(DaemonPort& port);
// Only /metrics, /livez and /readyz.
[[nodiscard]] HttpRouter make_metrics(DaemonPort& port);

}  // namespace gossipd
