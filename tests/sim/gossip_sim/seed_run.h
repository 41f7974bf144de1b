// tests/sim/gossip_sim/seed_run.h - one seed from its first start to the verdict.
#pragma once

#include "tests/sim/gossip_sim/mutants.h"

namespace gossipd::sim {

inline constexpr Duration virtual_time_min = std::chrono::minutes(10);
inline constexpr std::size_t faults_min = 20;

struct SeedFailure {
  std::string checker, text;
  std::vector<std::string> last_events;
};

struct SeedResult {
  std::uint64_t seed = 0;
  std::size_t nodes = 0;
  double virtual_seconds = 0;
  double settling_seconds = 0;  // of calm, until all agreed on the living
  std::uint64_t events = 0, messages = 0, replica_checks = 0;
  std::array<std::uint64_t, fault_classes> faults{};
  std::optional<SeedFailure> failure;
};

// `mutant` may be null. With `trace` every event is told on stderr as it happens.
[[nodiscard]] SeedResult run_seed(std::uint64_t seed, const Mutant* mutant, bool trace);

}  // namespace gossipd::sim
