// tests/lone_node.h - a single real Node; the test plays its peers, its trainer and its clock.
//
// Carries out the Node's effects as the daemon does, but keeps what it sends for the test to read.
// A bound on the effects of an event stands for a driver's capacity. One owner; everything happens
// at once, in the caller's time.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/node.h"
#include "core/wire/control.h"
#include "core/wire/turn.h"

namespace gossipd {

inline constexpr std::size_t lone_effects_max = 20'000;        // of one event
inline constexpr std::size_t lone_sent_bytes_max = 16u << 20;  // of one event

class LoneNode {
 public:
  struct Sent {
    SessionId session{};
    Lane lane{};
    SharedBytes message;
  };

  static NodeConfig config_of(std::uint64_t random_seed) {
    NodeConfig config;
    config.name = "lone";
    config.advertise = {"lone", 1};
    config.random_seed = random_seed;
    return config;
  }
  static NodeState state_of(NodeId id, ClusterId cluster) {
    NodeState state;
    state.id = id;
    state.cluster = cluster;
    return state;
  }

  LoneNode(const NodeConfig& config, const NodeState& state) : node_(config, state, now_) {
    settle();
  }

  // Knows the job from the start; without a model it must get one from a peer.
  void prepare(const Schema& schema, const std::string& document, JobHash job, Samples budget,
               bool has_model) {
    node_.on_job(document, job, budget, now_);
    settle();
    prepare_model(schema, has_model);
  }
  void prepare_model(const Schema& schema, bool has_model) {
    schema_ = schema;
    model_.assign(schema.floats(), has_model ? 0.125f : 0.0f);
    RoundBuffers buffers = make_round_buffers(schema_.floats());
    buffers.initial.assign(schema_.floats(), 0.125f);
    node_.on_model_ready(schema_, std::move(buffers), has_model, 0, 0, now_);
    settle();
  }

  SessionId open(bool outbound, const Endpoint& remote) {
    const SessionId id{++last_session_};
    open_.push_back(id);
    node_.on_session_open(id, outbound, remote, now_);
    settle();
    return id;
  }
  void cut(SessionId id) {
    if (!is_open(id)) return;
    std::erase(open_, id);
    node_.on_session_closed(id, "cut", now_);
    settle();
  }
  void hear(SessionId id, Lane lane, std::span<const std::byte> message) {
    if (!is_open(id)) return;
    node_.on_message(id, lane, message, now_);
    settle();
  }
  void hear(SessionId id, const Control& message) {
    hear(id, Lane::control, encode_control(message));
  }
  void pass(Duration time) {
    now_ += time;
    node_.on_time(now_);
    settle();
  }
  // Makes a trainer's step and hands over the parameters, if the trainer has the buffer.
  void train(float pull, bool finite) {
    if (!update_) return;
    Update update = *std::exchange(update_, std::nullopt);
    for (std::size_t i = 0; i < model_.size(); ++i)
      model_[i] = (update.replace ? update.values[i] : model_[i] + update.values[i]) +
                  (update.training ? pull : 0.0f);
    Snapshot snapshot;
    step_ += update.training ? 1 : 0;
    samples_ += update.training ? 32 : 0;
    snapshot.model = std::move(update.values);
    std::ranges::copy(model_, snapshot.model.begin());
    snapshot.step = step_;
    snapshot.samples = samples_;
    snapshot.learning_rate = snapshot.learning_rate_peak = 0.1;
    snapshot.step_seconds = 0.01;
    snapshot.batch = 32;
    snapshot.finite = finite;
    node_.on_snapshot(std::move(snapshot), now_);
    settle();
  }

  // Carries out an event's effects until none are left.
  void settle() {
    std::size_t effects = 0;
    sent_bytes_ = 0;
    for (;;) {
      std::vector<Effect> taken = node_.take_effects();
      if (taken.empty() && !node_.has_work()) break;
      effects += taken.size() + 1;
      GOSSIPD_ASSERT(effects <= lone_effects_max);
      for (Effect& effect : taken) std::visit([this](auto& e) { carry_out(e); }, effect);
      if (node_.has_work()) node_.work(now_);
    }
    GOSSIPD_ASSERT(sent_bytes_ <= lone_sent_bytes_max);
  }

  [[nodiscard]] bool is_open(SessionId id) const {
    return std::ranges::find(open_, id) != open_.end();
  }
  [[nodiscard]] const std::vector<SessionId>& sessions() const { return open_; }
  [[nodiscard]] std::vector<Sent> take_sent() { return std::exchange(sent_, {}); }
  [[nodiscard]] Node& node() { return node_; }
  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] std::span<const float> model() const { return model_; }
  [[nodiscard]] std::size_t reads_waiting() const { return reads_.size(); }
  bool job_arrived = false;               // from a peer
  bool restart_asked = false;             // the id is another process's, or the job another one
  std::optional<NextJobEffect> next_job;  // asked for; the test answers
  bool holds_reads = false;               // of the slow disk
  void read_all() {
    for (const FileReadEffect& read : std::exchange(reads_, {})) {
      node_.on_file_read(read.session, read.file, read.offset, Bytes(read.bytes, std::byte{7}));
      settle();
    }
  }
  // The first link, if there is one.
  [[nodiscard]] std::optional<LinkView> link() const {
    const NodeView view = node_.view(now_);
    return view.links.empty() ? std::nullopt : std::optional(view.links.front());
  }

 private:
  void carry_out(SendEffect& e) {
    sent_bytes_ += e.message->size();
    if (!is_open(e.session)) return;
    const std::size_t bytes = e.message->size();
    sent_.push_back(Sent{e.session, e.lane, std::move(e.message)});
    if (e.lane == Lane::bulk) node_.on_bulk_sent(e.session, bytes, now_);
  }
  void carry_out(CloseEffect& e) { std::erase(open_, e.session); }
  void carry_out(UpdateEffect& e) { update_ = std::move(e.update); }
  void carry_out(RestartEffect&) { restart_asked = true; }
  void carry_out(NextJobEffect& e) { next_job = std::move(e); }
  void carry_out(RestoreEffect&) {
    node_.on_restored(std::vector<float>(schema_.floats(), 0.25f), now_);
  }
  void carry_out(FileReadEffect& e) {
    reads_.push_back(e);
    GOSSIPD_ASSERT(reads_.size() <= 256 * 8);
    if (!holds_reads)
      reads_.pop_back(),
          node_.on_file_read(e.session, e.file, e.offset, Bytes(e.bytes, std::byte{7}));
  }
  void carry_out(DialEffect&) {}
  void carry_out(PersistEffect& e) { node_.on_persisted(e.state, now_); }
  void carry_out(JobEffect&) { job_arrived = true; }
  void carry_out(FilePieceEffect&) {}
  void carry_out(BudgetEffect&) {}
  void carry_out(RequestSnapshotEffect&) {}
  void carry_out(ProgressEffect&) {}
  void carry_out(CheckpointEffect&) {}
  void carry_out(LogEffect&) {}

  Instant now_{std::chrono::seconds(1000)};
  Node node_;
  Schema schema_;
  std::vector<float> model_;
  std::optional<Update> update_;
  Step step_ = 0;
  Samples samples_ = 0;
  std::vector<SessionId> open_;
  std::vector<Sent> sent_;
  std::vector<FileReadEffect> reads_;
  std::uint64_t last_session_ = 0;
  std::size_t sent_bytes_ = 0;
};

}  // namespace gossipd
