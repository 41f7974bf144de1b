// tools/gossipctl/discover.h - nodes that announce themselves in the local network.
//
// Optional: Avahi on a member announces `_gossipd._tcp` (deploy/avahi), and its avahi-browse finds
// it. Nothing is taken from an announcement but an address to dial: whoever is in the network can
// announce anything, and joining needs the cluster's key as ever.
#pragma once

#include <string>
#include <vector>

#include "tools/gossipctl/commands.h"

namespace gossipd {

struct Announced {
  std::string name, host, address;  // address: HOST:PORT, as --join takes it
  bool operator==(const Announced&) const = default;
};

// What `avahi-browse -rpt` prints: one for each name and address; what has no usable address, or is
// no line of it, is left out.
[[nodiscard]] std::vector<Announced> read_announcements(const std::string& text);

ExitCode discover(Console&, double timeout_s);

}  // namespace gossipd
