// core/membership/policy.h - what each node may choose for itself about membership and links.
//
// Nodes of one cluster may differ in all of it. The defaults are also the command line's and the
// node file's (settings.h).
#pragma once

#include "core/base/protocol.h"
#include "core/membership/member.h"

namespace gossipd {

// Addresses through which a node looks for its cluster.
inline constexpr std::size_t seeds_max = 64;

struct MembershipPolicy {
  // the newest to speak: an older one while a cluster is upgraded
  std::uint32_t protocol = protocol_version;
  std::uint32_t links = 3;      // neighbours this node tries to have
  std::uint32_t links_max = 0;  // neighbours it accepts; 0: one more than it seeks
  // records it keeps: of a larger cluster, of those it met last
  std::size_t known_max = members_max;
  // interval for publishing own statistics and relaying others'
  Duration tick = std::chrono::milliseconds(1000);
  Duration ping = std::chrono::milliseconds(1000);           // interval on each link
  Duration suspect_after = std::chrono::milliseconds(3000);  // silence on a link
  Duration fail_after = std::chrono::milliseconds(10000);    // silence, or a suspicion that lasts
  // interval for asking a random member without a link for a sign of life; 0: never
  Duration probe = std::chrono::milliseconds(10000);
  // interval for replacing a link by one to another random member; 0: never
  Duration rotate = std::chrono::minutes(10);
  Duration handshake_timeout = std::chrono::milliseconds(10000);
  // pause before an endpoint is dialled again: the minimum, doubled by every failure
  Duration redial_min = std::chrono::milliseconds(300);
  Duration redial_max = std::chrono::milliseconds(15000);
  // a node that restarts with known members waits this long before it trains alone
  Duration isolation_grace = std::chrono::milliseconds(8000);
  Duration leave_flush = std::chrono::milliseconds(3000);  // for the last exchange before leaving
  Duration finish_cap = std::chrono::milliseconds(60000);  // for the final exchange
  // of a member to the typical one: samples that it claims beyond that count late
  double speed_ratio_max = 16;

  [[nodiscard]] std::uint32_t accepted_links() const {
    return links_max == 0 ? links + 1 : links_max;
  }
};

}  // namespace gossipd
