// tests/sim/gossip_sim/mutants.h - planted mistakes that show that each checker bites.
//
// A mutant is a mistake around the core: of the driver, the disk, the trainer or the network. Some
// are mistakes that gossipd once made. A correct core cannot repair it, so its checker must find
// it.
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
[[nodiscard]] const Mutant* find_mutant(const std::string& name);  // null if there is none

}  // namespace gossipd::sim
