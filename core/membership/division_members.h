// core/membership/division_members.h - among whom a set that all nodes hold is divided.
//
// Every node works out by itself who trains on which part of a shared set, from the members that
// it knows. So all must count the same members: those that train or have just ended. A suspect
// still counts, so that a lost packet moves nothing; a member that paused, left or failed does not.
// Pure.
#pragma once

#include "core/membership/directory.h"

namespace gossipd {

struct DivisionMember {
  NodeId id{};
  std::uint32_t batch = 0;  // weighs its part; 0: not known yet, the job's
  bool operator==(const DivisionMember&) const = default;
};

// By id. This node counts by the phase that it is in, which its record may not say yet.
[[nodiscard]] std::vector<DivisionMember> who_divides(const Directory&, Phase own_phase);

}  // namespace gossipd
