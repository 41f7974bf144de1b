// tools/lab/gossip_host.h - what the gossip strategy keeps of each machine and each session.
//
// Shared by the strategy's own files: gossip.cpp (processes and faults), gossip_effects.cpp (the
// core's effects and the trainer), gossip_sessions.cpp (connections). A process that dies loses
// what is said to be its own; the rest of a Host is the machine's.
#pragma once

#include "models/training/step_loop.h"
#include "tools/lab/gossip.h"

namespace gossipd::lab {

struct GossipStrategy::Host {
  struct Disk {  // what survives a crash
    NodeState state;
    Instant written{};         // the state
    std::vector<float> model;  // of the checkpoint; empty: there is none
    OptimizerState optimizer;
    StepLoop::Counters counters;  // without the loss: it begins anew
  };

  explicit Host(const Job& job) : loop(job.batch), cluster{.budget = job.budget_samples} {}

  std::unique_ptr<Node> node;        // the process's; null while none runs
  GradientEngine* engine = nullptr;  // restored from `disk` when a process starts
  Disk disk;
  std::uint64_t life = 0;  // +1 at every end of a process; events of former lives are void
  Instant frozen_until{};
  Instant timer_at = Instant::max();
  std::uint64_t timer = 0;

  // the trainer
  StepLoop loop;                // the process's, but its counters stay if there is no checkpoint
  std::optional<Update> given;  // the process's; taken at the next step boundary
  bool computing = false;       // a step is under way, of this process or of one that died in it
  StepLoop::Cluster cluster;    // as last told by the core
  Instant checkpoint_at{};      // the next is written at the first boundary from then on
  std::vector<float> shown;     // the model, as model() last gave it out
};

struct GossipStrategy::Session {
  std::size_t ends[2];
  SessionId ids[2];
  bool open = true;
  [[nodiscard]] int end_of(std::size_t machine, SessionId id) const {
    return ends[0] == machine && ids[0] == id ? 0 : 1;
  }
};

[[nodiscard]] Endpoint endpoint_of(std::size_t machine);

}  // namespace gossipd::lab
