// daemon/node_driver.h - drives the core's Node with a real clock, real connections and a real
// trainer.
//
// After every event: carry out the effects in order, arm the one timer, and give the loop back
// between two pieces of work, so that a large model never keeps a heartbeat waiting. Whatever goes
// to the disk is written by a thread of its own (disk/disk_writer.h), and the node is told when its
// state is there: no disk keeps the loop. What waits for a disk is in node_driver_disk.cpp, what
// can be looked at in node_driver_view.cpp, what an operator asks for in node_driver_operator.cpp,
// how a node goes on to the next job in node_driver_next_job.cpp, and how it begins and ends in
// node_driver_life.cpp. Loop thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/disk/bounded_answers.h"
#include "daemon/disk/disk_watch.h"
#include "daemon/disk/disk_writer.h"
#include "daemon/disk/key_store.h"
#include "daemon/disk/state_store.h"
#include "daemon/finish_watch.h"
#include "daemon/job_trial.h"
#include "daemon/rest/events.h"
#include "daemon/rest/rest.h"
#include "daemon/rest/status_log.h"
#include "daemon/service_manager.h"
#include "daemon/start_plan.h"
#include "daemon/training.h"
#include "models/devices/worker_pool.h"
#include "net/http/server.h"
#include "net/peer/transport.h"

namespace gossipd {

inline constexpr const char* still_out = "this node has left; `gossipctl join` brings it back";

class NodeDriver final : public PeerHandler, public DaemonPort {
 public:
  // All must outlive the driver. `socket` of external trainers may be null.
  NodeDriver(EventLoop& loop, const DaemonConfig& config, const StateStore& store,
             TrainerSocket* socket);
  ~NodeDriver() override;

  // Before start(). May wait for seconds for a name server.
  void find_own_address(const StartPlan& plan);
  // Listens, starts the node and serves REST. An error means nothing runs.
  [[nodiscard]] std::optional<Error> start(const StartPlan& plan);
  // What may change while the node runs (node_driver_reload.cpp): level of the log and seeds as
  // configured now, and the files of certificates. An error is told and changes nothing else.
  void reload(const Result<DaemonConfig>& now_configured);
  // Says goodbye, writes a last checkpoint, flushes; then the loop stops. Safe to repeat.
  void stop(const std::string& why);
  // Where peers reach this node, once it has started.
  [[nodiscard]] const Endpoint& address() const { return address_; }
  // After the loop has stopped: why, unless somebody asked for it.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }

  // … and whether a thread still reads the job's data, which nobody is to wait for.
  [[nodiscard]] bool left_trainer_behind() const {
    return training_ && training_->is_left_behind();
  }
  // … or the process is to start again, with the same command line.
  [[nodiscard]] bool restart_wanted() const { return restart_wanted_; }
  // With `until` "finished": it has stopped since the job is.
  [[nodiscard]] bool job_finished() const { return job_finished_; }

  // DaemonPort
  [[nodiscard]] NodeSummary node() const override;
  [[nodiscard]] StatusView status() const override;
  [[nodiscard]] std::vector<MemberView> members() const override;
  [[nodiscard]] std::vector<LinkView> links() const override;
  [[nodiscard]] std::vector<SessionView> sessions() const override;
  [[nodiscard]] WireView wire() const override;
  [[nodiscard]] std::optional<JobView> job() const override;
  [[nodiscard]] const History& history() const override { return log_.history(); }
  [[nodiscard]] const MemberHistory& member_history() const override {
    return log_.member_history();
  }
  [[nodiscard]] Events& events() override { return events_; }
  [[nodiscard]] bool stopping() const override { return stopping_; }
  [[nodiscard]] std::optional<Error> join(std::vector<Endpoint> seeds) override;
  [[nodiscard]] std::optional<Error> leave() override;
  [[nodiscard]] std::optional<Error> pause() override;
  [[nodiscard]] std::optional<Error> resume() override;
  [[nodiscard]] std::optional<Error> extend_budget(Samples more) override;
  void start_job(const std::string& file, JobStarted done) override;
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

  [[nodiscard]] std::optional<Error> listen(const StartPlan& plan);
  [[nodiscard]] std::optional<Error> look_at_seeds(const StartPlan& plan);
  [[nodiscard]] bool is_this_node(const Endpoint& there) const;
  void reload_certificates();
  void choose_first_model(const StartPlan& plan);
  [[nodiscard]] Training::Events training_events();
  void start_node(const StartPlan& plan, Instant now);
  void look_at_founding();
  [[nodiscard]] std::string device() const;  // empty: not chosen yet

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
  void carry_out(NextJobEffect&);
  void carry_out(RestoreEffect&);
  void carry_out(LogEffect&);

  [[nodiscard]] JobStarted bounded_start(JobStarted done);
  void begin_job(const Job& job, const JobStarted& answer);
  void answer_job_start(const Result<JobHash>& begun);
  [[nodiscard]] Error why_not_tried() const;
  void on_next_job_written(const NextJobEffect& next, const std::optional<Error>& error);
  void save_job(const std::string& document);
  void look_at_unsaved_job();
  void on_state_written(const NodeState& state, const std::optional<Error>& error);
  void prepare_training();
  void on_piece_written(const JobFile& file, const Result<bool>& whole);
  void look_at_descriptors();
  void look_at_memory();
  void look_at_certificates();
  void look_at_disk();
  void look_at_life();
  void look_at_end();
  void look_at_next_job();
  void look_for_a_model();
  [[nodiscard]] std::optional<Error> restore_history();
  void save_history();
  [[nodiscard]] DiskView disk_view(Instant now) const;
  void on_training_ready(Training::Ready ready);
  void on_training_failed(const Error& error);
  void warn(const std::string& text);
  void record_history(std::optional<Figures> evaluation, bool last = false);
  void on_second();
  void divide_data();
  void tell_live();
  void log_progress();
  void wait_for_disk();
  void stopped(const char* part);
  void on_stop_time_up();
  [[nodiscard]] std::optional<Error> missing_on_disk() const;
  void finish_stopping();

  EventLoop& loop_;
  const DaemonConfig& config_;
  const StateStore& store_;
  TrainerSocket* const socket_;
  StatusLog log_;
  Events events_;
  DiskWriter disk_;
  DiskWatch disk_watch_;
  BoundedAnswers answers_;  // that wait for the disk
  FinishWatch finish_watch_;
  JobTrial trial_;  // of the job to go on to

  std::unique_ptr<WorkerPool> workers_;  // null: the loop's thread does it all
  std::optional<Node> node_;
  std::optional<KeyStore> keys_;
  std::unique_ptr<PeerTransport> transport_;
  std::unique_ptr<Training> training_;
  std::unique_ptr<HttpServer> rest_;     // null: the configuration wants none
  std::unique_ptr<HttpServer> metrics_;  // likewise
  Timer node_timer_;
  Timer second_timer_;
  Timer stop_timer_;
  ServiceManager service_;

  std::optional<std::string> own_host_;           // by find_own_address()
  Endpoint address_;                              // advertised
  std::optional<PeerCertificates> certificates_;  // in place of keys
  // At the last look.
  std::vector<std::string> certificate_warnings_;  // while they hold
  bool out_of_descriptors_ = false;
  std::uint64_t memory_refused_ = 0;  // bytes that exchange.memory_dir had no room for
  std::optional<KnownJob> job_;
  std::optional<std::string> unsaved_job_;  // its text, which the disk did not take
  int seconds_to_job_ = 0;                  // until that is tried again
  ClusterId founds_{};                      // as in the plan
  bool awaits_cluster_ = false;  // whether this node founds one decides where its model comes from
  bool nobody_to_ask_ = false;   // no seed, no other member ever met
  // the trainer's first model counts as the cluster's, restored or not
  bool model_at_start_ = false;
  bool goes_on_ = false;              // to a job that is not the cluster's first
  Samples own_samples_at_start_ = 0;  // as the disk knew them
  bool history_writing_ = false;
  int seconds_to_history_ = 0;  // until it is written the next time
  bool state_saved_ = false;    // once, in this life
  bool state_failed_ = false;   // the last write did
  bool work_posted_ = false;
  bool carrying_out_ = false;   // effects
  int seconds_unsaid_ = 0;      // since the last line of progress
  bool trainer_steps_ = false;  // as the last update told it
  Instant event_began_{};
  std::map<SessionId, OpenSession> sessions_;  // those the node knows
  bool stopping_ = false;
  bool restart_wanted_ = false;
  bool job_finished_ = false;
  struct JobStart {
    StartedJob job;
    JobStarted answer;
  };
  std::optional<JobStart> job_start_;  // asked for here, and not answered yet
  // Its name, or its file until that is read; from the order to start it until begun or refused.
  std::optional<std::string> tried_job_;
  JobHash next_job_{};                     // on disk; 0: the node stays with its job
  std::optional<Instant> next_job_since_;  // the disk has it to write, and nobody was warned yet
  bool has_model_ = false;                 // a model of its own, at the trainer's start
  int seconds_without_model_ = 0;          // while no living member has one
  std::set<std::string> parts_running_;    // what the stop waits for, as words
  Instant stop_due_{};                     // by then all of it is to have ended
  std::optional<Error> failure_;
};

}  // namespace gossipd
