// tools/lab/gossip.h - the product in the lab: gossipd's Node on every machine, in virtual time.
//
// Drives the core by the World's events, as gossipd does by TCP and threads: it carries out the
// core's effects in their order and trains by the trainer's own account of steps
// (models/training/step_loop.h). Nothing in core is replaced or shortened: joining, turns, final
// exchange and failure detection all happen, and their bytes are counted including framing and TLS.
#pragma once

#include <set>

#include "core/node.h"
#include "models/training/step_loop.h"
#include "tools/lab/strategy.h"

namespace gossipd::lab {

class GossipStrategy : public Strategy {
 public:
  GossipStrategy();
  ~GossipStrategy() override;

  [[nodiscard]] std::vector<Setting> settings() override;
  [[nodiscard]] std::optional<std::string> mistake(const Job&) const override;
  void start(Setup&) override;
  [[nodiscard]] bool finished() const override;
  [[nodiscard]] std::span<const float> model(std::size_t machine) override;
  [[nodiscard]] State state() const override;

  [[nodiscard]] bool takes_events() const override { return true; }
  // like kill -9: no goodbye; what is not on disk is lost
  void kill(std::size_t machine) override;
  void restart(std::size_t machine) override;                  // from its disk
  void freeze(std::size_t machine, Duration length) override;  // like SIGSTOP
  void leave(std::size_t machine) override;
  [[nodiscard]] bool takes_part(std::size_t machine) const override;

  // The machines that each may connect to; empty: all.
  void reachable(std::set<std::pair<std::size_t, std::size_t>> pairs) override {
    reachable_ = std::move(pairs);
  }
  // Machines with a late start.
  void starts_at(std::size_t machine, Duration delay) override { delays_[machine] = delay; }
  void poison(const PoisonSpec& poison) override { poison_ = poison; }

  [[nodiscard]] NodeView view(std::size_t machine) const;

 private:
  struct Host;
  struct Session;
  void boot(std::size_t i, bool founds);
  [[nodiscard]] static RoundBuffers buffers(Host& host);  // with the initial model, at its step 0
  void for_host(std::size_t i, Instant when, std::function<void(Host&)> run);
  void carry_out(std::size_t i);
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
  void dial(std::size_t from, const Endpoint& endpoint);
  void send(std::size_t from, SessionId id, Lane lane, SharedBytes message);
  void close(std::size_t from, SessionId id, const std::string& why);
  void break_session(const std::shared_ptr<Session>& session);
  void arm_timer(std::size_t i);
  void boundary(std::size_t i);
  void take(Host& host, Update update);
  void write_checkpoint(Host& host);
  void step(std::size_t i);
  void on_step(std::size_t i, Instant began, double loss);
  void give_snapshot(std::size_t i);
  [[nodiscard]] StepLoop::Rates rates(const Host& host) const;
  [[nodiscard]] bool is_bad(std::size_t machine, PoisonSpec::Kind kind) const;
  void lie(Snapshot& snapshot);
  [[nodiscard]] bool reaches(std::size_t a, std::size_t b) const;

  ExchangePolicy exchange_;
  MembershipPolicy membership_;
  BalancePolicy balance_;
  double checkpoint_every_s_ = 60;
  Setup* setup_ = nullptr;
  std::string document_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::map<std::size_t, Duration> delays_;
  PoisonSpec poison_;
  std::set<std::pair<std::size_t, std::size_t>> reachable_;
  std::map<std::pair<std::size_t, SessionId>, std::shared_ptr<Session>> sessions_;
  std::uint64_t next_session_ = 0;
  std::uint64_t lies_ = 0;
};

}  // namespace gossipd::lab
