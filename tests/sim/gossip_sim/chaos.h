// tests/sim/gossip_sim/chaos.h - disturbs a cluster at a scenario's rates, then restores calm.
//
// Faults come at random moments; one without a target gives way to another class. They are counted
// by class. calm() reverses what operators and time would reverse; gone() names what stays.
#pragma once

#include "tests/sim/gossip_sim/checkers.h"

namespace gossipd::sim {

class Chaos {
 public:
  Chaos(VirtualCluster& cluster, Checkers& checkers, Hostile& hostile, const Scenario& scenario);

  void begin();
  void end() { calm_ = true; }  // no more faults; then, once no node is frozen,
  void calm();
  // Changes what `from` says to a neighbour if it is lying.
  void distort(std::size_t from, Lane lane, Bytes& message);
  [[nodiscard]] bool over() const { return fired_ >= scenario_.faults; }
  [[nodiscard]] std::uint64_t fired() const { return fired_; }
  [[nodiscard]] const std::array<std::uint64_t, fault_classes>& counts() const { return counts_; }
  // Never started again: the others must consider it failed.
  [[nodiscard]] bool gone(std::size_t node) const { return gone_.contains(node); }
  [[nodiscard]] bool is_foreign(std::size_t node) const {
    return scenario_.foreign && node + 1 == scenario_.nodes.size();
  }
  [[nodiscard]] std::size_t nodes() const {
    return scenario_.nodes.size() - (scenario_.foreign ? 1 : 0);
  }

 private:
  using Action = bool (Chaos::*)();  // false: no target
  void next();
  bool inject(Fault);
  void watch_the_end();

  // chaos_faults.cpp, in the order of Fault
  bool reset();
  bool half_open();
  bool one_way_cut();
  bool partition();
  bool delay();
  bool clog();
  bool duplicate_session();
  bool kill();
  bool kill_at_effect();
  bool power_loss();
  bool lost_write();
  bool stop();
  bool freeze();
  bool clock_jump();
  bool old_disk();
  bool empty_disk();
  bool foreign_disk();
  bool disk_error();
  bool slow_disk();
  bool stuck_disk();
  bool lost_checkpoint();
  bool late_join();
  bool operator_race();
  bool wrong_cluster();
  bool not_a_number();
  bool explosion();
  bool hostile_bytes();
  bool hostile_member();
  bool endless_turn();
  bool connection_flood();
  bool at_the_end();
  bool cloned_disk();
  bool reflected_dial();
  bool lying_member();
  bool poisoned_step();
  bool lie();
  bool next_job();

  [[nodiscard]] std::optional<std::size_t> pick(const std::function<bool(std::size_t)>& fits);
  [[nodiscard]] std::optional<std::size_t> pick_running();
  [[nodiscard]] std::optional<VirtualNetwork::Pair> pick_session();
  [[nodiscard]] bool is_running(std::size_t node) const {
    return cluster_.alive(node) && !cluster_.frozen(node);
  }
  [[nodiscard]] bool has_model(std::size_t node) const;
  [[nodiscard]] bool has_finished(std::size_t node) const {
    return is_running(node) && cluster_.node(node).phase() == Phase::finished;
  }
  [[nodiscard]] bool others_have_model(std::size_t node) const;  // in memory and on disk
  [[nodiscard]] bool all_have_cluster() const;
  [[nodiscard]] bool knows_nobody_alive(std::size_t node) const;
  void hold(std::size_t from, std::size_t to, Duration length);
  void start_later(std::size_t node);
  void die_and_start_later(std::size_t node);
  void start(std::size_t node);
  void spoil_disk(std::size_t node);
  void wipe(std::size_t node);
  void throw_away(std::size_t node, float by, int again);
  bool replace_disk(const std::function<bool(std::size_t)>& fits,
                    const std::function<void(std::size_t)>& with);
  void operate(std::size_t node);
  bool start_job(std::size_t node);
  Duration length(Duration longest);
  bool chance(double probability) { return random_.uniform() < probability; }

  VirtualCluster& cluster_;
  Checkers& checkers_;
  Hostile& hostile_;
  const Scenario& scenario_;
  Random random_;
  std::uint64_t fired_ = 0;
  std::size_t ends_disturbed_ = 0;  // faults at_the_end so far
  std::array<std::uint64_t, fault_classes> counts_{};
  bool calm_ = false;
  std::set<std::size_t> gone_;
  std::size_t came_ = 0;  // of the late nodes
  std::size_t jobs_started_ = 0;
  std::map<std::size_t, Disk> backups_;
  std::set<std::size_t> misplaced_;  // running on another cluster's disk
  std::uint64_t wiped_ = 0;
  std::map<std::size_t, Instant> lies_until_;
};

}  // namespace gossipd::sim
