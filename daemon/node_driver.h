// daemon/node_driver.h - drives the core's Node with a real clock, real connections and a real
// trainer.
//
// After every event: carry out the effects in order, arm the one timer, and give the loop back
// between two pieces of work, so that a large model never keeps a heartbeat waiting. Whatever goes
// to the disk is written by a thread of its own (disk_writer.h), and the node is told when its
// state is there: no disk keeps the loop (node_driver_disk.cpp has all that waits for one). Loop
// thread only.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/disk/disk_writer.h"
#include "daemon/disk/state_store.h"
#include "daemon/rest/bounded_answers.h"
#include "daemon/rest/rest.h"
#include "daemon/start_plan.h"
#include "daemon/training.h"
#include "net/http/server.h"
#include "net/peer/transport.h"

namespace gossipd {

class NodeDriver final : public PeerHandler, public DaemonPort {
 public:
  // All three must outlive the driver.
  NodeDriver(EventLoop& loop, const DaemonConfig& config, const StateStore& store);
  ~NodeDriver() override;

  // Listens, starts the node and serves REST. An error means nothing runs.
  [[nodiscard]] std::optional<Error> start(const StartPlan& plan);
  // Certificates of peers and its own from their files, for sessions from now on; what cannot be
  // read changes nothing.
  void reload_certificates();
  // Says goodbye, writes a last checkpoint, flushes; then the loop stops. Safe to repeat.
  void stop(const std::string& why);
  // After the loop has stopped: why, unless somebody asked for it.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }

  // … or the process is to start again, with the same command line.
  [[nodiscard]] bool restart_wanted() const { return restart_wanted_; }

  // DaemonPort
  [[nodiscard]] DaemonView view() const override;
  [[nodiscard]] const History& history() const override { return history_; }
  [[nodiscard]] std::optional<Error> join(std::vector<Endpoint> seeds) override;
  [[nodiscard]] std::optional<Error> leave() override;
  [[nodiscard]] std::optional<Error> pause() override;
  [[nodiscard]] std::optional<Error> resume() override;
  [[nodiscard]] std::optional<Error> extend_budget(Samples more) override;
  [[nodiscard]] std::optional<Error> forget(NodeId member) override;
  void write_checkpoint(std::function<void(Result<CheckpointView>)> done) override;
  [[nodiscard]] Result<KeysView> keys() const override;
  void when_on_disk(std::function<void(bool)> done) override;
  void install_key(const std::string& file, KeysChanged done) override;
  void use_key(std::uint64_t id, KeysChanged done) override;
  void retire_key(std::uint64_t id, KeysChanged done) override;

  // PeerHandler
  void on_session_open(SessionId, const SessionInfo&) override;
  void on_session_closed(SessionId, const Error& reason) override;
  void on_dial_failed(const Endpoint& dialled, const Error& reason) override;
  void on_message(SessionId, Lane, std::span<const std::byte> message) override;
  void on_bytes(SessionId) override;
  void on_bulk_sent(SessionId, std::size_t bytes) override;
  void on_rejected_inbound(const Endpoint& remote, const Error& reason) override;

 private:
  struct OpenSession {
    Endpoint address;
    bool outbound = false;
    Instant opened{};
  };
  struct TimedWarning {
    Instant at{};
    std::string text;
  };

  [[nodiscard]] std::optional<Error> listen(const StartPlan& plan);
  [[nodiscard]] std::optional<Error> look_at_seeds(const StartPlan& plan);
  [[nodiscard]] bool is_this_node(const Endpoint& there) const;
  [[nodiscard]] std::optional<Error> serve_rest();
  [[nodiscard]] Result<std::optional<CertificateFiles>> rest_certificate();
  [[nodiscard]] Training::Events training_events();
  void start_node(const StartPlan& plan, Instant now);

  Instant begin_event();  // now: from here to the end of after_event() nothing else is handled
  void after_event();
  void carry_out_effects();
  void carry_out(DialEffect&);
  void carry_out(SendEffect&);
  void carry_out(CloseEffect&);
  void carry_out(PersistEffect&);
  void carry_out(JobEffect&);
  void carry_out(FileReadEffect&);
  void carry_out(FilePieceEffect&);
  void carry_out(BudgetEffect&);
  void carry_out(UpdateEffect&);
  void carry_out(RequestSnapshotEffect&);
  void carry_out(ProgressEffect&);
  void carry_out(CheckpointEffect&);
  void carry_out(RestartEffect&);
  void carry_out(RestoreEffect&);
  void carry_out(LogEffect&);

  void save_job(const std::string& document);
  void on_state_written(const NodeState& state, const std::optional<Error>& error);
  void prepare_training();
  void on_piece_written(const JobFile& file, const Result<bool>& whole);
  void keep_keys(const NodeState& state);
  [[nodiscard]] Error no_key() const;
  void change_keys(const char* what, std::uint64_t id,
                   const std::function<std::optional<Error>(Keyring&)>& change, KeysChanged done);
  void watch_disk();
  [[nodiscard]] DiskView disk_view(Instant now) const;
  [[nodiscard]] Error stopped_too_late() const;
  void on_training_ready(Training::Ready ready);
  void on_training_failed(const Error& error);
  void warn(const std::string& text);
  void remember_warning(const std::string& text);
  void record_history(const NodeView& node, std::optional<Figures> evaluation);
  void on_second();
  void divide_data(const NodeView& node);
  void stopped_one();
  void finish_stopping();

  EventLoop& loop_;
  const DaemonConfig& config_;
  const StateStore& store_;
  History history_;
  const Instant started_;
  Instant event_began_{};
  StallView stalls_;
  DiskWriter disk_;
  BoundedAnswers answers_;               // that wait for the disk
  std::optional<Instant> disk_slow_at_;  // the last second in which a write took long

  std::optional<Node> node_;
  std::unique_ptr<PeerTransport> transport_;
  std::unique_ptr<Training> training_;
  HttpRouter router_;
  std::unique_ptr<HttpServer> rest_;
  Timer node_timer_;
  Timer second_timer_;
  Timer stop_timer_;

  Endpoint address_;  // advertised
  std::optional<Keyring> keys_;
  bool uses_certificates_ = false;
  bool keys_are_kept_ = false;  // STATE/cluster.key holds them, or is about to
  bool keys_change_ = false;    // what comes into force when it is on disk
  bool was_member_at_start_ = false;
  std::optional<KnownJob> job_;
  bool nobody_to_ask_ = false;  // no seed, no other member ever met
  // the trainer's first model counts as the cluster's, restored or not
  bool model_at_start_ = false;
  bool state_saved_ = false;   // once, in this life
  bool state_failed_ = false;  // the last write did
  bool work_posted_ = false;
  bool trainer_steps_ = false;                 // as the last update told it
  std::map<SessionId, OpenSession> sessions_;  // those the node knows
  RefusalLog turned_away_;                     // connections that never reached the node
  std::deque<TimedWarning> warnings_;
  bool stopping_ = false;
  bool restart_wanted_ = false;
  int parts_running_ = 0;  // of the stop: transport, training, REST
  std::optional<Error> failure_;
};

}  // namespace gossipd
