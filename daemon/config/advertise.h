// daemon/config/advertise.h - the address under which peers reach this node, when nobody gave one.
//
// A node that listens on one address says that one. One that listens on every address says the one
// from which its first seed on another machine is reached, or else the first of its interfaces;
// loopback only where all seeds are loopback, or there is no interface. Asks the system's tables
// and, for seeds given by name, its resolver, which cannot be interrupted.
#pragma once

#include <netdb.h>

#include <optional>
#include <string>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

[[nodiscard]] bool is_every_address(const Endpoint& listening);

// From where this machine reaches the first seed that is on another one. Once a name's server has
// not answered no other name is asked for, since each might take as long: seconds.
[[nodiscard]] std::optional<std::string> own_address_towards(
    const std::vector<Endpoint>& seeds, decltype(&::getaddrinfo) look_up = &::getaddrinfo);

// `bound`: what the transport listens on, its port known. `towards`: own_address_towards(seeds), of
// interest where that is_every_address().
[[nodiscard]] Endpoint choose_advertised(const Endpoint& bound, const std::vector<Endpoint>& seeds,
                                         const std::optional<std::string>& towards);

// For whoever founds a cluster that no other box can reach: why, and the way out.
[[nodiscard]] std::string only_here(const Endpoint& advertised);

// Whether a connection to `there` would reach the node that listens on `bound` and says that it is
// at `advertised`. Asks no name server, so of names it knows `localhost` and this host's own.
[[nodiscard]] bool leads_to(const Endpoint& there, const Endpoint& advertised,
                            const std::vector<Endpoint>& bound);

}  // namespace gossipd
