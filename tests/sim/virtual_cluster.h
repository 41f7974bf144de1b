// tests/sim/virtual_cluster.h - several real Nodes in one process, in virtual time, without sockets.
//
// The driver that the daemon is over TCP, this is over a list of future events: sessions with
// latency, whole messages, and cuts after any number of messages; a trainer that makes a step every
// `step_time` by a function of the test's choice. Deterministic: same calls, same run. After every
// event the invariants of the node concerned are checked, and after every delta that the replicas
// on both ends of its link agree bit for bit.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <queue>
#include <set>

#include "core/node.h"

namespace gossipd::sim {

struct NodeOptions {
  std::vector<std::size_t> seeds;       // indices of other nodes
  std::vector<float> start;             // P floats; empty: takes the cluster's model
  Duration step_time = std::chrono::milliseconds(10);
  ExchangePolicy exchange;
  MembershipPolicy membership;
  Samples budget = 0;                   // of the job, when this node founds the cluster
  std::uint32_t batch = 32;             // of the job
  Duration time_per_sample{};           // a step takes step_time + batch · time_per_sample
  BalancePolicy balance;
  double loss = 0;                      // that its snapshots report
};

class VirtualCluster {
 public:
  // Called for every optimiser step: changes the parameters in place.
  using StepFunction = std::function<void(std::size_t node, std::span<float> parameters, Step step)>;

  explicit VirtualCluster(Schema schema, StepFunction step = {}) : schema_(std::move(schema)), step_(std::move(step)) {}

  std::size_t add(NodeOptions options);
  void kill(std::size_t node);      // no goodbye; its sessions break
  void restart(std::size_t node, bool keep_model = true);
  void freeze(std::size_t node, Duration length);  // SIGSTOP: nothing is received, sent or done
  void cut_after(std::uint64_t messages) { cut_after_ = messages; }  // then every session breaks, once
  void block(std::size_t a, std::size_t b, bool blocked);            // messages and dials between them vanish
  void set_speed(std::size_t node, Duration time_per_sample) { nodes_[node]->options.time_per_sample = time_per_sample; }
  void set_latency(Duration one_way) { latency_ = one_way; }
  // For models so large that hashing every replica after every message would be all that a test does.
  void check_no_replicas() { replicas_unchecked_ = true; }
  void tamper(std::function<bool(std::size_t from, std::size_t to, Lane lane, Bytes& message)> f) {
    tamper_ = std::move(f);
    replicas_unchecked_ = true;  // until a fresh virtual cluster: what was spoiled is repaired later
  }  // false: drop

  void run_for(Duration length) { run_until([] { return false; }, length); }
  // True when the condition came true within `limit`.
  bool run_until(const std::function<bool()>& condition, Duration limit);

  [[nodiscard]] Node& node(std::size_t i) { return *nodes_[i]->node; }
  [[nodiscard]] std::span<float> model(std::size_t i) { return nodes_[i]->parameters; }
  [[nodiscard]] NodeView view(std::size_t i) { return nodes_[i]->node->view(now_); }
  [[nodiscard]] NodeId id(std::size_t i) const { return NodeId{0x1000 + i}; }
  [[nodiscard]] const NodeState& disk(std::size_t i) const { return nodes_[i]->disk; }
  [[nodiscard]] Step steps(std::size_t i) const { return nodes_[i]->step; }
  [[nodiscard]] Samples samples(std::size_t i) const { return nodes_[i]->samples; }
  [[nodiscard]] bool alive(std::size_t i) const { return nodes_[i]->node != nullptr; }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t replica_checks() const { return replica_checks_; }
  [[nodiscard]] const std::vector<std::string>& log(std::size_t i) const { return nodes_[i]->log; }
  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] std::vector<double> mean() const;
  [[nodiscard]] double spread() const;  // largest distance of a model to the mean, relative to ‖mean‖ … absolute: rms
  void learning_rate(double now, double peak) { rate_ = now, rate_peak_ = peak; }

 private:
  struct Host {
    NodeOptions options;
    std::unique_ptr<Node> node;
    NodeState disk;
    JobHash job{};
    std::vector<float> parameters;
    Step step = 0;
    Samples samples = 0;
    Samples others = 0;
    std::uint32_t batch = 0;
    [[nodiscard]] Duration step_time() const { return options.step_time + options.time_per_sample * batch; }
    bool stepping = false;
    bool training = false;           // what the last update told the trainer
    std::optional<Update> held;      // buffer with the trainer
    Step snapshot_due = 0;
    std::uint64_t life = 0;          // +1 at every kill: events of former lives are void
    Instant frozen_until{};
    bool model_ready = false;
    bool timer_armed = false;
    std::vector<std::string> log;
  };
  struct Session {
    std::size_t ends[2];
    SessionId ids[2];
    std::uint64_t lives[2];
    bool open = true;
    Instant last[2] = {};  // arrival of the last message, for order
  };
  struct Event {
    Instant at;
    std::uint64_t order;
    std::function<void()> run;
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  void start(std::size_t i, bool has_model);
  void at(Instant when, std::function<void()> run) { events_.push(Event{when, ++order_, std::move(run)}); }
  void for_host(std::size_t i, Instant when, std::function<void(Host&)> run);
  void carry_out(std::size_t i);
  void dial(std::size_t from, const Endpoint& endpoint);
  void deliver(std::size_t from, SessionId id, Lane lane, SharedBytes message);
  void break_session(const std::shared_ptr<Session>& session, const std::string& why);
  void arm_timer(std::size_t i);
  void train(std::size_t i);
  void answer(std::size_t i);
  void check(const Session& session);
  static Endpoint endpoint(std::size_t i) { return Endpoint{"node" + std::to_string(i), peer_port_default}; }

  Schema schema_;
  StepFunction step_;
  std::vector<std::unique_ptr<Host>> nodes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::pair<std::size_t, SessionId>, std::shared_ptr<Session>> sessions_;
  std::set<std::pair<std::size_t, std::size_t>> blocked_;
  std::function<bool(std::size_t, std::size_t, Lane, Bytes&)> tamper_;
  bool replicas_unchecked_ = false;
  Duration latency_ = std::chrono::milliseconds(1);
  Instant now_{std::chrono::seconds(1000)};
  std::uint64_t order_ = 0, next_session_ = 0, messages_ = 0, bytes_ = 0, cut_after_ = 0, replica_checks_ = 0;
  double rate_ = 0.1, rate_peak_ = 0.1;
};

}  // namespace gossipd::sim
