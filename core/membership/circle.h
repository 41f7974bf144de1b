// core/membership/circle.h - the members in a circle, ordered by id.
//
// The problem: links drawn at random may leave two groups that are content with themselves. Where
// every member is linked to the next one in a circle of all, no group is. So each node links to the
// next member first, and never gives up the links to the two beside it.
//
// Members that do not live, have no model yet, or whose address nobody reaches have no place in it.
// Pure.
#pragma once

#include "core/membership/directory.h"

namespace gossipd {

// The member after `from`, whose own place is by its id alone; 0: there is no other.
[[nodiscard]] NodeId next_in_circle(const Directory& directory, NodeId from);

// One has its place next after the other.
[[nodiscard]] bool beside_in_circle(const Directory& directory, NodeId a, NodeId b);

}  // namespace gossipd
