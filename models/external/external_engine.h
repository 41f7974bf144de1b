// models/external/external_engine.h - a process of its own trains this node's model; here is the
// daemon's end of it.
//
// The model lives in that process. What the daemon has is a mirror: the newest whole snapshot and
// what has been added since. From the mirror it answers while nobody trains, or while the process
// says nothing for long. One process at a time, as a TrainerSocket lets it in. ATTACH.md says what
// happens when either end dies.
//
// One thread, as every engine; wake() and cancel() from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "models/external/shared_model.h"
#include "models/external/trainer_socket.h"
#include "models/training/engine.h"

namespace gossipd {

// What of a run counts for this node. Kept on disk, since the run may outlive the daemon.
struct RunAccount {
  attach::RunToken run{};
  // Of the run when it was first counted or last ended a connection, and of the node then.
  attach::Counters run_began;
  attach::Counters node_began;
  bool operator==(const RunAccount&) const = default;
  [[nodiscard]] attach::Counters of_node(const attach::Counters& run_now) const;
};

class ExternalEngine final : public Engine, public OutsideSteps {
 public:
  struct Options {
    NodeId node{};
    std::optional<RunAccount> account;  // of the last run, from disk
    // On disk when it returns. A failure ends the connection: no step is counted then.
    std::function<std::optional<Error>(const RunAccount&)> keep;
  };

  // Lets trainers in from now on. `socket` outlives it. Code "no-memory".
  [[nodiscard]] static Result<std::unique_ptr<ExternalEngine>> create(const Schema& schema,
                                                                      TrainerSocket& socket,
                                                                      Options options);
  ~ExternalEngine() override;

  // The cluster begins with the first trainer's model: waits for one that is finite, and refuses
  // others. `say` gets the events meanwhile. False: cancelled.
  [[nodiscard]] bool take_first_model(const std::function<void(const std::string&)>& say);
  // Any thread: take_first_model() returns.
  void cancel();
  // Any thread: a process is attached, though it may say nothing.
  [[nodiscard]] bool has_trainer() const { return has_trainer_.load(); }

  // Engine
  [[nodiscard]] OutsideSteps* outside() override { return this; }
  [[nodiscard]] const Schema& schema() const override { return schema_; }
  [[nodiscard]] std::string device() const override { return "external"; }
  [[nodiscard]] Samples shard_samples() const override { return 0; }
  void prepare_thread(int) override {}  // a step waits for it
  double step(Samples, double, std::uint32_t) override;
  void copy_model(std::span<float> out) override;
  void add_to_model(std::span<const float> values) override;
  void replace_model(std::span<const float> values) override;
  void begin_copy(std::span<float> out) override;
  [[nodiscard]] bool takes_updates() const override { return !session_ || !session_->in_flight; }
  bool copied() override { return copy_to_.empty(); }
  void settle() override;
  OptimizerState optimizer_state() override { return {}; }
  void restore_optimizer(const OptimizerState&) override {}
  std::optional<Figures> evaluate(std::span<const float>, const std::atomic<bool>&) override {
    return std::nullopt;
  }

  // OutsideSteps
  News meet(const Order& order) override;
  void wake() override { alarm_.ring(); }

 private:
  using WallClock = std::chrono::steady_clock;
  // What the mirror has beyond its snapshot, in update[].
  enum class Pending {
    none,
    unsent,     // the trainer does not know of it
    in_flight,  // in a GO without its DONE
    applied,    // in the trainer's model, in no snapshot yet
  };
  struct InFlight {
    std::uint64_t sequence = 0;
    bool updates = false;
    bool copies = false;
    WallClock::time_point until;
  };
  struct Session {
    TrainerSocket::Guest guest;
    std::uint64_t sequence = 0;                // of the last GO
    std::optional<std::uint64_t> to_answer{};  // a STEP's sequence
    std::uint64_t last_step = 0;               // sequence of the last STEP
    bool idle = false;                         // that STEP has said nothing new
    bool process_ended = false;
    std::uint32_t told_flags = 0;  // of the last GO: paused, finished, settled
    std::optional<attach::Counters> counters{};
    double step_seconds = 0;              // of the newest step; 0: not known
    WallClock::time_point asked_at{};     // by the last STEP
    WallClock::time_point answered_at{};  // by the last GO
    WallClock::time_point heard_at{};
    std::optional<InFlight> in_flight{};
  };

  ExternalEngine(const Schema& schema, TrainerSocket& socket, Options options,
                 std::unique_ptr<SharedModel> memory);

  [[nodiscard]] std::span<float> base() const { return memory_->snapshot(slot_); }
  void add_chunk(std::span<const float> update, const attach::Range& chunk,
                 std::span<float> model) const;
  void replace_by_mirror();
  void fold();
  void copy_from_mirror();

  void let_in(News&, const Order&);
  void count_remembered(Order&);
  [[nodiscard]] bool shift_account(const attach::Counters& by);
  [[nodiscard]] std::optional<Error> keep(const RunAccount&);
  bool keep_or_say(const RunAccount&);  // false: said in events_
  void refuse_guest(const TrainerSocket::Guest&, const Error&);
  void keep_counters();
  void end_session(const std::string& why);
  void end_refused(const Error&);
  void answer(const Order&);
  [[nodiscard]] bool may_hold(std::uint32_t flags) const;
  [[nodiscard]] attach::Go make_go(const Order&, std::uint32_t flags);
  [[nodiscard]] WallClock::time_point deadline() const;
  void wait(const Order&);
  void read_packets(News&, const Order&);
  void look_at_limits();
  [[nodiscard]] std::optional<Error> take_in(const attach::FromTrainer&, News&, const Order&);
  [[nodiscard]] std::optional<Error> on_step(const attach::StepDone&, News&, const Order&);
  [[nodiscard]] std::optional<Error> on_done(const attach::Done&, News&, const Order&);
  [[nodiscard]] std::optional<Error> why_not_first(std::span<const float> model) const;
  [[nodiscard]] std::optional<Error> count(const attach::Counters&, News&, const Order&);
  [[nodiscard]] double measured_step(Step more) const;
  [[nodiscard]] bool is_silent() const;
  [[nodiscard]] bool is_at_work() const { return session_ && !is_silent(); }

  const Schema schema_;
  TrainerSocket& socket_;
  const Options options_;
  const std::vector<attach::Range> chunks_;     // of what is shared, in order
  const std::vector<attach::Range> variances_;  // in order
  const Alarm alarm_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> has_trainer_{false};  // session_ is there

  std::unique_ptr<SharedModel> memory_;
  std::uint32_t slot_ = 0;        // of the newest whole snapshot
  bool memory_is_known_ = false;  // a process has had it
  bool has_model_ = false;        // the snapshot is one
  bool first_model_wanted_ = false;
  Pending pending_ = Pending::none;
  bool pending_replaces_ = false;
  std::vector<bool> touched_;  // of chunks_, by what is pending
  bool copy_wanted_ = false;   // with the next GO
  std::span<float> copy_to_;   // empty: nobody waits for a copy

  std::optional<RunAccount> account_;
  bool account_is_from_disk_ = false;  // no process has attached in this daemon's life
  // The node's counters at the start, or at a known run's ATTACH, with what members remember: what
  // has been counted beyond them was done in this daemon's life.
  std::optional<attach::Counters> count_from_;
  std::optional<Session> session_;
  std::vector<std::string> events_;  // not told yet
  std::vector<std::byte> buffer_;
};

}  // namespace gossipd
