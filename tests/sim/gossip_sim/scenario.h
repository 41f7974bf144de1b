// tests/sim/gossip_sim/scenario.h - what a seed stands for: nodes, their model and policies, and
// faults.
//
// Everything is drawn from the seed, so its number fully describes a run. Pure.
#pragma once

#include <array>

#include "tests/sim/virtual_cluster.h"

namespace gossipd::sim {

enum class Fault : std::uint8_t {
  reset,
  half_open,
  one_way_cut,
  partition,
  delay,
  clog,
  duplicate_session,
  kill,
  kill_at_effect,
  power_loss,
  lost_write,
  stop,
  freeze,
  clock_jump,
  old_disk,
  empty_disk,
  foreign_disk,
  disk_error,
  slow_disk,
  stuck_disk,
  lost_checkpoint,
  late_join,
  operator_race,
  wrong_cluster,
  not_a_number,
  explosion,
  hostile_bytes,
  hostile_member,
  connection_flood,
  at_the_end,
  endless_turn,
  cloned_disk,
  reflected_dial,
  lying_member,
  poisoned_step,
  lie,
  next_job,
  count_
};
inline constexpr std::size_t fault_classes = static_cast<std::size_t>(Fault::count_);
[[nodiscard]] const char* to_string(Fault);

inline constexpr ClusterId own_cluster{0xc1};  // of the first host (VirtualCluster::add)

struct Scenario {
  std::uint64_t seed = 0;
  Schema schema;
  std::vector<NodeOptions> nodes;           // the first founds the cluster
  std::vector<std::vector<float>> targets;  // where each node's own data pull its model
  float pull = 0.2f;                        // fraction of the way to the target in a step
  std::size_t late = 0;                     // this many of the last nodes join during the chaos
  // the host after the last node founds a cluster of its own
  bool foreign = false;
  std::size_t faults = 0;
  std::array<double, fault_classes> rates{};  // relative
  // (at_the_end and next_job have no rate: they occur wherever there is a budget)
  Duration chaos{};
  Samples budget = 0;  // of the job; 0: it has no end
  Duration freeze_max{};
  MembershipPolicy membership;  // of all nodes
};

[[nodiscard]] Scenario draw_scenario(std::uint64_t seed);

// Time limits from the end of the last fault. Derivations are beside the code.
[[nodiscard]] Duration membership_bound(const Scenario&, std::size_t ids_ever);
[[nodiscard]] Duration agreement_bound(const Scenario&);
[[nodiscard]] Duration final_bound(const Scenario&);
// Learning rates, of chaos and of calm.
inline constexpr double rate_peak = 0.1, calm_rate = 0.02;
// Of two `final` files, `hops` links apart: each is at most consensus_bound away from its node's
// model, and so are the models of neighbours (EXCHANGE.md).
inline constexpr double final_distance_max(std::size_t hops) {
  return static_cast<double>(2 + hops) * ExchangePolicy{}.consensus_bound;
}
// largest distance of a model to the mean, relative to the mean
inline constexpr double consensus_after_calm = 0.03;

}  // namespace gossipd::sim
