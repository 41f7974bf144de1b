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

NodeId next_in_circle(const Directory& directory, NodeId from, NodeId also) {
  const auto& entries = directory.entries();
  const auto first_of = [&](auto at, auto end) {
    while (at != end &&
           (at->first == from || (at->first != also && !is_in_circle(at->second.record))))
      ++at;
    return at == end ? NodeId{} : at->first;
  };
  const auto after = entries.upper_bound(from);
  NodeId next = first_of(after, entries.end());
  if (next == NodeId{}) next = first_of(entries.begin(), after);
  if (also == NodeId{} || also == from || entries.contains(also)) return next;
  // Not in the directory yet: it comes first if it lies before `next`, on the way from `from`.
  const auto steps_to = [from](NodeId id) { return raw(id) - raw(from); };  // modulo 2^64
  return next == NodeId{} || steps_to(also) < steps_to(next) ? also : next;
}

bool beside_in_circle(const Directory& directory, NodeId a, NodeId b) {
  return next_in_circle(directory, a, b) == b || next_in_circle(directory, b, a) == a;
}

}  // namespace gossipd
