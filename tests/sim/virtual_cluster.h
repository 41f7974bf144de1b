// tests/sim/virtual_cluster.h - several real Nodes in one process, in virtual time, without
// sockets.
//
// Drives Nodes by a list of future events, as the daemon does over TCP: a VirtualNetwork for
// sessions, a disk and a clock for every host, and a trainer that makes a step every `step_time` by
// the test's function. Deterministic: same calls, same run. Checks the node's invariants after
// every event, and after every delta that the replicas on both ends of its link agree bit for bit;
// a failure is thrown as a Violation. A Watcher sees everything; Hooks plant a driver's mistakes.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <stdexcept>

#include "core/node.h"
#include "models/training/step_loop.h"
#include "tests/sim/virtual_network.h"

namespace gossipd::sim {

// An invariant does not hold.
struct Violation : std::runtime_error {
  Violation(std::string by, const std::string& text)
      : std::runtime_error(by + ": " + text), checker(std::move(by)) {}
  std::string checker;
};
// `text` is only called when it does not hold.
#define GOSSIPD_SIM_REQUIRE(holds, checker, text) \
  ((holds) ? static_cast<void>(0) : throw ::gossipd::sim::Violation(checker, text))

struct NodeOptions {
  std::vector<std::size_t> seeds;  // indices of other nodes
  std::vector<float> start;        // P floats; empty: takes the cluster's model
  std::vector<float> initial;      // what it makes of the job; empty: it cannot
  Duration step_time = std::chrono::milliseconds(10);
  ExchangePolicy exchange;
  MembershipPolicy membership;
  Samples budget = 0;  // of the job, when this node founds the cluster
  // the trainer makes no step beyond it, by its knowledge of the others; 0: no limit
  Samples trainer_budget = 0;
  std::uint32_t batch = 32;    // of the job
  Duration time_per_sample{};  // a step takes step_time + batch · time_per_sample
  bool steps_outside = false;  // another process makes them, in batches of its own
  BalancePolicy balance;
  double loss = 0;          // that its snapshots report
  bool knows_job = true;    // false: the job comes from the cluster
  Duration clock_offset{};  // of its clock to the others'
  Duration timer_slack{};   // its timers are late by up to this
};

// A trainer's checkpoint.
struct Checkpoint {
  std::vector<float> parameters;  // empty: there is none
  StepLoop::Counters counters;
  JobHash job{};
};

// A host's disk when its process starts.
struct Disk {
  NodeState state;
  Instant written{};  // the state
  Checkpoint checkpoint;
  std::vector<float> final_model;  // `final.safetensors`; empty: there is none
  std::string job_document = "job";
};

// Observes everything between a node and its driver. All calls are between two events of that node.
struct Watcher {
  virtual ~Watcher() = default;
  virtual void started(std::size_t, const NodeState& /*disk, before the node began*/) {}
  virtual void persisted(std::size_t, const NodeState& /*before*/, const NodeState& /*after*/) {}
  // It restarts under another id; what it has trained on since it gave up the old one counts there.
  virtual void took_new_id(std::size_t, Samples /*carried over*/) {}
  virtual void sending(std::size_t /*from*/, std::size_t /*to*/, SessionId, Lane, const Bytes&) {}
  virtual void before_message(std::size_t /*from*/, std::size_t /*to*/, Lane, const Bytes&) {}
  virtual void after_message(std::size_t /*from*/, std::size_t /*to*/, Lane, const Bytes&) {}
  virtual void before_update(std::size_t, const Update&, std::span<const float>) {}
  virtual void after_update(std::size_t, std::span<const float>) {}
  virtual void logged(std::size_t, const std::string&) {}
  virtual void after_event(std::size_t) {}
};

// Each may change its argument; empty hooks change nothing.
struct Hooks {
  // before they are carried out
  std::function<void(std::size_t, std::vector<Effect>&)> effects;
  std::function<void(std::size_t, const NodeState& before, NodeState& written)> write;  // to disk
  // true: when writing begins, and not when it has ended
  std::function<bool(std::size_t)> says_written;
  // what a starting process reads
  std::function<void(std::size_t, Disk&)> boot;
  std::function<void(std::size_t, Snapshot&)> snapshot;
  std::function<bool(std::size_t)> final_model;  // false: reported as written, but not
  std::function<bool(std::size_t)> next_job;     // the same
  std::function<void(std::size_t, std::span<float>, const Update&)> applied;  // after an update
  std::function<bool(std::size_t from, std::size_t to, Lane, Bytes&)> wire;   // false: drop
  // false: sent bulk is not reported
  std::function<bool(std::size_t)> acknowledge;
};

// A host that is not a gossipd; a test decides what it sends.
struct Stranger {
  virtual ~Stranger() = default;
  virtual void opened(SessionId) {}
  virtual void dial_failed() {}
  virtual void closed(SessionId) {}
  virtual void heard(SessionId, Lane, const Bytes&) {}
};

class VirtualCluster : private VirtualNetwork::Handler {
 public:
  // Called for every optimiser step: changes the parameters in place.
  using StepFunction =
      std::function<void(std::size_t node, std::span<float> parameters, Step step)>;

  explicit VirtualCluster(Schema schema, StepFunction step = {})
      : schema_(std::move(schema)), step_(std::move(step)), network_(events_, *this) {}

  std::size_t add(NodeOptions options);      // and starts it
  std::size_t add_off(NodeOptions options);  // until power_on()
  void power_on(std::size_t node);
  std::size_t add_stranger(Stranger&);
  enum class Death { killed, power_lost };  // after power_lost no kernel closes the sessions
  void kill(std::size_t node, Death death = Death::killed);  // no goodbye; its sessions break
  // The same, before the node's effect number `effects` from now on; 0: before the next write.
  void kill_at_effect(std::size_t node, std::uint64_t effects, Death death);
  [[nodiscard]] bool is_to_die(std::size_t node) const {
    return nodes_[node]->dies_at_effect.has_value();
  }
  void forgive_death(std::size_t node) { nodes_[node]->dies_at_effect.reset(); }
  void stop(std::size_t node);  // SIGTERM
  void restart(std::size_t node, bool keep_model = true);
  // as a daemon does: the model from the checkpoint, or from a neighbour
  void start_from_disk(std::size_t node);
  void freeze(std::size_t node, Duration length);  // SIGSTOP: no receiving, sending or acting
  void jump_clock(std::size_t node, Duration forward) {
    nodes_[node]->options.clock_offset += forward;
  }
  void fail_disk(std::size_t node, bool fails) { nodes_[node]->disk_fails = fails; }
  // A state is on disk this long after its writing began; then the newest waiting one is next. 0:
  // at once.
  void slow_disk(std::size_t node, Duration takes) { nodes_[node]->disk_takes = takes; }
  // Stuck: no write ends. A process that dies meanwhile finds the earlier state on its disk.
  void stick_disk(std::size_t node, bool stuck);
  void write_checkpoint(std::size_t node);
  // Largest distance of two final models of these nodes, relative to the largest norm, without
  // local segments; nullopt if one of them has none.
  [[nodiscard]] std::optional<double> final_distance(std::span<const std::size_t> nodes) const;
  // Distance of its final model to its model, relative to the model's norm; 1 without a final one.
  [[nodiscard]] double final_distance_to_own(std::size_t node) const;
  // From now on dials of `node` to `to` come back to itself, or no longer.
  void reflect(std::size_t node, std::size_t to, bool reflected) {
    if (reflected)
      reflected_.insert({node, to});
    else
      reflected_.erase({node, to});
  }
  void reflect_nothing() { reflected_.clear(); }
  // then every session breaks, once
  void cut_after(std::uint64_t messages) { cut_after_ = messages; }
  void set_speed(std::size_t node, Duration time_per_sample) {
    nodes_[node]->options.time_per_sample = time_per_sample;
  }
  void set_latency(Duration one_way) { network_.set_latency(one_way); }
  // For models so large that hashing every replica after every message would dominate the test.
  void check_no_replicas() { replicas_unchecked_ = true; }
  void keep_no_logs() { logs_unkept_ = true; }  // with many nodes they would fill the memory
  void tamper(std::function<bool(std::size_t from, std::size_t to, Lane lane, Bytes& message)> f) {
    hooks_.wire = std::move(f);
    // until a fresh virtual cluster: what was spoiled is repaired later
    replicas_unchecked_ = true;
  }  // false: drop
  void watch(Watcher& watcher) { watcher_ = &watcher; }
  void set_hooks(Hooks hooks) { hooks_ = std::move(hooks); }
  // An action of an operator or a fault, as one event of the node.
  void act(std::size_t node, const std::function<void(Node&, Instant local)>& action);

  void run_for(Duration length) {
    run_until([] { return false; }, length);
  }
  // True if the condition holds within `limit`.
  bool run_until(const std::function<bool()>& condition, Duration limit);
  // the next event, if there is one until then
  bool step(Instant end) { return events_.step(end); }
  [[nodiscard]] EventQueue& events() { return events_; }
  [[nodiscard]] VirtualNetwork& network() { return network_; }

  // The next job, of this text.
  std::optional<Error> start_job(std::size_t node, const std::string& document);
  // A job's file on a node's disk: what it holds, and what has come of it. None until one of the
  // two calls.
  void put_file(std::size_t node, Bytes content) { nodes_[node]->file = std::move(content); }
  void want_file(std::size_t node, const JobFile& file) {
    nodes_[node]->file.clear();
    nodes_[node]->node->want_file(file, local(node));
  }
  [[nodiscard]] const Bytes& file(std::size_t node) const { return nodes_[node]->file; }

  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] Node& node(std::size_t i) { return *nodes_[i]->node; }
  [[nodiscard]] std::span<float> model(std::size_t i) { return nodes_[i]->parameters; }
  [[nodiscard]] NodeView view(std::size_t i) const { return nodes_[i]->node->view(local(i)); }
  [[nodiscard]] NodeId id(std::size_t i) const { return nodes_[i]->disk.state.id; }
  [[nodiscard]] const NodeState& disk(std::size_t i) const { return nodes_[i]->disk.state; }
  [[nodiscard]] Disk& whole_disk(std::size_t i) { return nodes_[i]->disk; }
  // That its process trains; 0: none yet.
  [[nodiscard]] JobHash job(std::size_t i) const { return nodes_[i]->job; }
  [[nodiscard]] NodeOptions& options(std::size_t i) { return nodes_[i]->options; }
  [[nodiscard]] Step steps(std::size_t i) const { return nodes_[i]->loop.step(); }
  [[nodiscard]] Samples samples(std::size_t i) const { return nodes_[i]->loop.samples(); }
  [[nodiscard]] bool alive(std::size_t i) const { return nodes_[i]->node != nullptr; }
  [[nodiscard]] std::size_t sessions(std::size_t i) const { return nodes_[i]->sessions.size(); }
  [[nodiscard]] bool is_stranger(std::size_t i) const { return nodes_[i]->stranger != nullptr; }
  [[nodiscard]] bool disk_fails(std::size_t i) const { return nodes_[i]->disk_fails; }
  [[nodiscard]] bool disk_is_stuck(std::size_t i) const { return nodes_[i]->disk_stuck; }
  [[nodiscard]] bool frozen(std::size_t i) const { return now() < nodes_[i]->frozen_until; }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // to train, to a trainer that has stopped
  [[nodiscard]] std::uint64_t vain_updates(std::size_t i) const { return nodes_[i]->vain_updates; }
  [[nodiscard]] std::uint64_t replica_checks() const { return replica_checks_; }
  [[nodiscard]] const std::vector<std::string>& log(std::size_t i) const { return nodes_[i]->log; }
  [[nodiscard]] Instant now() const { return events_.now(); }
  [[nodiscard]] Instant local(std::size_t i) const {
    return now() + nodes_[i]->options.clock_offset;
  }
  [[nodiscard]] std::vector<double> mean() const;
  // largest distance of a model to the mean, relative to ‖mean‖ … absolute: rms
  [[nodiscard]] double consensus_distance() const;
  void learning_rate(double now, double peak) { rate_ = now, rate_peak_ = peak; }
  [[nodiscard]] static Endpoint endpoint(std::size_t i) {
    return Endpoint{"node" + std::to_string(i), peer_port_default};
  }

 private:
  struct Host {
    NodeOptions options;
    std::unique_ptr<Node> node;
    Stranger* stranger = nullptr;
    Disk disk;
    bool disk_fails = false;
    bool disk_stuck = false;
    Duration disk_takes{};
    std::optional<NodeState> writing;  // under way
    std::optional<NodeState> waiting;  // the newest that came since
    std::uint64_t writes = 0;          // begun
    std::vector<float> parameters;
    JobHash job{};         // that its process trains; 0: none yet
    bool goes_on = false;  // from it to the next
    StepLoop loop{1};      // of the options' batch once they are known
    Samples others = 0;
    [[nodiscard]] StepLoop::Cluster cluster() const {
      return options.trainer_budget > 0
                 ? StepLoop::Cluster{.others = others, .budget = options.trainer_budget}
                 : StepLoop::Cluster{.others = others};
    }
    std::uint64_t vain_updates = 0;
    [[nodiscard]] Duration step_time() const {
      return options.step_time + options.time_per_sample * loop.batch();
    }
    bool stepping = false;   // an event is due that makes a step, or ends the stepping
    std::uint64_t life = 0;  // +1 at every kill: events of former lives are void
    Instant frozen_until{};
    bool timer_armed = false;
    Bytes file;
    std::optional<std::uint64_t> dies_at_effect;
    Death death = Death::killed;
    std::set<SessionId> sessions;  // that the node knows
    std::vector<std::string> log;
  };

  // VirtualNetwork::Handler
  void session_opened(std::size_t host, SessionId, bool outbound, const Endpoint& remote) override;
  void session_closed(std::size_t host, SessionId, const std::string& reason) override;
  void dial_failed(std::size_t host, const Endpoint&, const std::string& reason) override;
  void part_arrived(std::size_t host, SessionId) override;
  void message_arrived(std::size_t from, std::size_t to, SessionId, Lane, const Bytes&) override;
  void bulk_sent(std::size_t host, SessionId, std::size_t bytes) override;
  [[nodiscard]] std::uint64_t life(std::size_t host) const override { return nodes_[host]->life; }
  [[nodiscard]] bool is_up(std::size_t host) const override {
    return nodes_[host]->node != nullptr || nodes_[host]->stranger != nullptr;
  }
  [[nodiscard]] Instant frozen_until(std::size_t host) const override {
    return nodes_[host]->frozen_until;
  }

  void start(std::size_t i, bool has_model);
  [[nodiscard]] RoundBuffers buffers(const Host& host) const;
  void for_host(std::size_t i, Instant when, std::function<void(Host&)> run);
  void run_event(std::size_t i, const std::function<void(Host&)>& run);
  void carry_out(std::size_t i);
  // The process dies instead of carrying it out.
  [[nodiscard]] static bool dies_before(Host& host, const Effect& effect);
  void on(std::size_t i, DialEffect&);
  void on(std::size_t i, SendEffect&);
  void on(std::size_t i, CloseEffect&);
  void on(std::size_t i, PersistEffect&);
  void on(std::size_t i, JobEffect&);
  void on(std::size_t i, FileReadEffect&);
  void on(std::size_t i, FilePieceEffect&);
  void on(std::size_t i, BudgetEffect&);
  void on(std::size_t i, UpdateEffect&);
  void on(std::size_t i, RequestSnapshotEffect&);
  void on(std::size_t i, ProgressEffect&);
  void on(std::size_t i, CheckpointEffect&);
  void on(std::size_t i, RestoreEffect&);
  void on(std::size_t i, RestartEffect&);
  void on(std::size_t i, NextJobEffect&);
  void on(std::size_t i, LogEffect&);
  void persist(std::size_t i, NodeState state);
  void finish_write(std::size_t i, Duration after);
  void written(std::size_t i, const NodeState& state);
  void put_on_disk(std::size_t i, const NodeState& state);
  void write_final(std::size_t i);
  void arm_timer(std::size_t i);
  void train(std::size_t i);
  void answer(std::size_t i);
  void check(std::size_t a, std::size_t b, SessionId at_a);

  Schema schema_;
  StepFunction step_;
  EventQueue events_;
  VirtualNetwork network_;
  std::vector<std::unique_ptr<Host>> nodes_;
  Watcher* watcher_ = nullptr;
  Hooks hooks_;
  std::set<std::pair<std::size_t, std::size_t>> reflected_;
  bool replicas_unchecked_ = false, logs_unkept_ = false;
  std::uint64_t messages_ = 0, bytes_ = 0, cut_after_ = 0, replica_checks_ = 0;
  double rate_ = 0.1, rate_peak_ = 0.1;
};

}  // namespace gossipd::sim
