// tests/sim/gossip_sim/campaign.h - many seeds in several processes, and their totals.
//
// Processes, not threads: a failed assertion of the core ends one of them, which is a finding like
// any other.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tests/sim/gossip_sim/seed_run.h"

namespace gossipd::sim {

// With this many seeds every class of fault must occur.
inline constexpr std::uint64_t seeds_for_every_class = 100;

struct Campaign;

struct CampaignOptions {
  std::uint64_t first = 1, last = 1;
  std::size_t jobs = 1;
  const Mutant* mutant = nullptr;
  bool trace = false;
  std::function<SeedResult(std::uint64_t seed, const Mutant*, bool trace)> run = run_seed;
  std::size_t failures_max = 10;  // then it ends early
  // as it happens; may be empty
  std::function<void(std::uint64_t seed, const SeedFailure&)> on_failure;
  std::function<void(const Campaign&)> on_seed;  // after each
};

struct Campaign {
  std::uint64_t seeds_asked = 0, seeds = 0;  // `seeds` have ended, in a failure or not
  double virtual_seconds = 0, settling_seconds_most = 0;
  std::uint64_t events = 0, messages = 0, replica_checks = 0;
  std::size_t nodes_most = 0;
  std::array<std::uint64_t, fault_classes> faults{};
  std::map<std::uint64_t, SeedFailure> failures;  // by seed
  // of faults that never occurred; empty with too few seeds
  [[nodiscard]] std::vector<std::string> silent_classes() const;
  [[nodiscard]] bool passed() const {
    return failures.empty() && seeds == seeds_asked && silent_classes().empty();
  }
};

[[nodiscard]] Campaign run_campaign(const CampaignOptions&);
[[nodiscard]] nlohmann::json to_json(const Campaign&);
[[nodiscard]] std::string to_text(const Campaign&);
[[nodiscard]] std::string replay_command(std::uint64_t seed, const Mutant* mutant);

}  // namespace gossipd::sim
