#include "core/node/lifecycle.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace gossipd {
namespace {

// One row for each phase, in the order of the enum: where it leads.
constexpr std::initializer_list<Phase> transitions[] = {
    /* joining */
    {Phase::waiting_for_data, Phase::preparing, Phase::syncing, Phase::training, Phase::leaving,
     Phase::broken},
    /* waiting_for_data */
    {Phase::joining, Phase::preparing, Phase::syncing, Phase::training, Phase::leaving,
     Phase::broken},
    /* preparing */
    {Phase::joining, Phase::waiting_for_data, Phase::syncing, Phase::training, Phase::leaving},
    /* syncing */
    {Phase::waiting_for_data, Phase::training, Phase::leaving},
    /* training */
    {Phase::waiting_for_data, Phase::paused, Phase::finishing, Phase::leaving, Phase::broken},
    /* paused */
    {Phase::waiting_for_data, Phase::training, Phase::finishing, Phase::leaving, Phase::broken},
    /* finishing */
    {Phase::waiting_for_data, Phase::training, Phase::finished, Phase::leaving, Phase::broken},
    /* finished */
    {Phase::waiting_for_data, Phase::training, Phase::finishing, Phase::leaving, Phase::broken},
    /* leaving */
    {Phase::left},
    /* left */
    {Phase::joining},
    /* broken */
    {Phase::waiting_for_data, Phase::training, Phase::paused, Phase::leaving},
};
static_assert(std::size(transitions) == static_cast<std::size_t>(Phase::broken) + 1);

}  // namespace

bool Lifecycle::allows(Phase from, Phase to) {
  const auto& row = transitions[static_cast<std::size_t>(from)];
  return std::ranges::find(row, to) != row.end();
}

bool Lifecycle::enter(Phase to) {
  if (!allows(phase_, to)) return false;
  if (to == Phase::broken) was_paused_ = is(Phase::paused);
  phase_ = to;
  return true;
}

void Lifecycle::leave_by(Instant at, std::map<NodeId, std::uint64_t> spoken) {
  deadline_ = at;
  spoken_ = std::move(spoken);
}

bool Lifecycle::has_said_all(const std::function<bool(NodeId, std::uint64_t)>& said) const {
  return std::ranges::all_of(spoken_,
                             [&](const auto& item) { return said(item.first, item.second); });
}

}  // namespace gossipd
