#include "core/membership/division_members.h"

namespace gossipd {

std::vector<DivisionMember> who_divides(const Directory& directory, Phase own_phase) {
  // At the end all stop within moments; moving buckets then, and again when the job is extended,
  // would serve nobody.
  const auto trains = [](Phase phase) {
    return phase == Phase::training || phase == Phase::finishing || phase == Phase::finished;
  };
  const NodeId self = directory.self().id;
  std::vector<DivisionMember> out;
  for (const auto& [id, entry] : directory.entries())
    if (entry.record.state == MemberState::alive &&
        trains(id == self ? own_phase : entry.record.phase))
      out.push_back({id, entry.record.batch});
  return out;
}

}  // namespace gossipd
