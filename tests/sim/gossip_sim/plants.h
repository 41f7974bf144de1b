// tests/sim/gossip_sim/plants.h - mistakes planted to show that each checker bites.
//
// A plant is a mistake of the world around the core: of the driver, the disk, the trainer or the
// network, several of them mistakes that gossipd once made. A correct core cannot make up for it,
// so the checker that is meant for it has to find it.
#pragma once

#include "tests/sim/gossip_sim/scenario.h"

namespace gossipd::sim {

struct Plant {
  const char* name;
  const char* checker;  // that must find it
  const char* what;
  Hooks (*hooks)(VirtualCluster&, const Scenario&);
};

[[nodiscard]] std::span<const Plant> plants();
[[nodiscard]] const Plant* find_plant(const std::string& name);  // null: there is none

}  // namespace gossipd::sim
