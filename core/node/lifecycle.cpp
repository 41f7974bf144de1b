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
     Phase::broken, Phase::waiting_for_trainer},
    /* waiting_for_data */
    {Phase::joining, Phase::preparing, Phase::syncing, Phase::training, Phase::leaving,
     Phase::broken, Phase::waiting_for_trainer},
    /* preparing */
    {Phase::joining, Phase::waiting_for_data, Phase::syncing, Phase::training, Phase::leaving,
     Phase::waiting_for_trainer},
    /* syncing */
    {Phase::waiting_for_data, Phase::training, Phase::leaving, Phase::waiting_for_trainer},
    /* training */
    {Phase::waiting_for_data, Phase::paused, Phase::finishing, Phase::leaving, Phase::broken,
     Phase::waiting_for_trainer},
    /* paused */
    {Phase::waiting_for_data, Phase::training, Phase::finishing, Phase::leaving, Phase::broken,
     Phase::waiting_for_trainer},
    /* finishing */
    {Phase::waiting_for_data, Phase::training, Phase::finished, Phase::leaving, Phase::broken,
     Phase::waiting_for_trainer},
    /* finished */
    {Phase::waiting_for_data, Phase::training, Phase::finishing, Phase::leaving, Phase::broken,
     Phase::waiting_for_trainer},
    /* leaving */
    {Phase::left},
    /* left */
    {Phase::joining},
    /* broken */
    {Phase::waiting_for_data, Phase::training, Phase::leaving, Phase::waiting_for_trainer},
    /* waiting_for_trainer */
    {Phase::waiting_for_data, Phase::training, Phase::paused, Phase::finishing, Phase::leaving,
     Phase::broken},
};
static_assert(std::size(transitions) == phase_count);

}  // namespace

bool Lifecycle::allows(Phase from, Phase to) {
  const auto& row = transitions[static_cast<std::size_t>(from)];
  return std::ranges::find(row, to) != row.end();
}

bool Lifecycle::enter(Phase to) {
  if (to == Phase::training && trainer_is_absent_) to = Phase::waiting_for_trainer;
  if (!allows(phase_, to)) return false;
  phase_ = to;
  return true;
}

bool Lifecycle::trainer_is(bool present, std::string what) {
  has_outside_trainer_ = true;
  trainer_is_absent_ = !present;
  absent_trainer_ = std::move(what);
  return present ? is(Phase::waiting_for_trainer) : is(Phase::training);
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
