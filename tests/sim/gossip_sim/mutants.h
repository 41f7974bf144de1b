// tests/sim/gossip_sim/mutants.h - mistakes planted to show that each checker bites.
//
// A mutant is a mistake of the world around the core: of the driver, the disk, the trainer or the
// network, several of them mistakes that gossipd once made. A correct core cannot make up for it,
// so the checker that is meant for it has to find it.
#pragma once

#include "tests/sim/gossip_sim/scenario.h"

namespace gossipd::sim {

struct Mutant {
  const char* name;
  const char* checker;  // that must find it
  const char* what;
  Hooks (*hooks)(VirtualCluster&, const Scenario&);
};

[[nodiscard]] std::span<const Mutant> mutants();
[[nodiscard]] const Mutant* find_mutant(const std::string& name);  // null: there is none

}  // namespace gossipd::sim
