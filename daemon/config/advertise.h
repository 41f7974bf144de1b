// daemon/config/advertise.h - the address under which peers reach this node, when nobody gave one.
//
// A node that listens on one address says that one. One that listens on every address says the one
// from which its first seed on another machine is reached, or else the first of its interfaces;
// loopback only where all seeds are loopback, or there is no interface. Asks the system's tables
// (and its resolver, for seeds given by name): before the loop runs.
#pragma once

#include <vector>

#include "core/base/types.h"

namespace gossipd {

// `bound`: what the transport listens on, its port known.
[[nodiscard]] Endpoint choose_advertised(const Endpoint& bound, const std::vector<Endpoint>& seeds);

// For whoever founds a cluster that no other box can reach: why, and the way out.
[[nodiscard]] std::string only_here(const Endpoint& advertised);

// Whether a connection to `there` would reach the node that listens on `bound` and says that it is
// at `advertised`. Asks no name server, so of names it knows `localhost` and this host's own.
[[nodiscard]] bool leads_to(const Endpoint& there, const Endpoint& advertised,
                            const std::vector<Endpoint>& bound);

}  // namespace gossipd
