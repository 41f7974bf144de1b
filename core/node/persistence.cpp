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
  for (const auto& [id, entry] : directory.entries())
    if (id != state.id) state.members.push_back(entry.record);
  return state;
}

}  // namespace gossipd
