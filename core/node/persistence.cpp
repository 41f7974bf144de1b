#include "core/node/persistence.h"

#include "core/membership/sample_credit.h"

namespace gossipd {

bool Persistence::is_due(Instant now) {
  if (!requested_ && now < next_) return false;
  next_ = now + period;
  return true;
}

NodeState Persistence::to_write(NodeState state, const Directory& directory, Instant now) {
  requested_ = urgent_ = false;
  // Some time after the start the others have told all they know; a node that dies before has it
  // told again.
  state.unsure_for = now - started_ < SampleCredit::reserve ? unsure_for_ : Duration{};
  std::vector<const Directory::Entry*> unmet;
  const auto add = [&](NodeId id, const Directory::Entry& entry) {
    if (id == state.id) return;
    if (entry.was_ever_met()) {
      state.members.push_back(entry.to_keep());
      state.met.insert(id);
    } else if (unmet.size() < unmet_max) {
      unmet.push_back(&entry);
    }
  };
  // From the own id on, so that the nodes of a large cluster do not all keep the same ones.
  const auto& entries = directory.entries();
  const auto first = entries.upper_bound(state.id);
  for (auto it = first; it != entries.end(); ++it) add(it->first, it->second);
  for (auto it = entries.begin(); it != first; ++it) add(it->first, it->second);
  for (const Directory::Entry* entry : unmet) state.members.push_back(entry->to_keep());
  return state;
}

}  // namespace gossipd
