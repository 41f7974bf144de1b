#include "core/membership/circle.h"

namespace gossipd {
namespace {

bool has_model(Phase phase) {
  return phase != Phase::joining && phase != Phase::waiting_for_data && phase != Phase::preparing &&
         phase != Phase::syncing;
}

bool is_in_circle(const MemberRecord& record) {
  return record.state == MemberState::alive && has_model(record.phase) &&
         record.reachability != Reachability::dials_out &&
         record.reachability != Reachability::address_silent;
}

}  // namespace

NodeId next_in_circle(const Directory& directory, NodeId from) {
  const auto& entries = directory.entries();
  const auto first_of = [from](auto at, auto end) {
    while (at != end && (at->first == from || !is_in_circle(at->second.record))) ++at;
    return at == end ? NodeId{} : at->first;
  };
  const auto after = entries.upper_bound(from);
  const NodeId next = first_of(after, entries.end());
  return next != NodeId{} ? next : first_of(entries.begin(), after);
}

bool beside_in_circle(const Directory& directory, NodeId a, NodeId b) {
  return next_in_circle(directory, a) == b || next_in_circle(directory, b) == a;
}

}  // namespace gossipd
