// What this node's own steps have done to its model, judged before a neighbour hears of it; and
// which neighbours are to be believed.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/correction/curvature.h"
#include "core/node/node_impl.h"

namespace gossipd {
namespace {

// steps taken back in a row, all of them not finite, before the model counts as broken
constexpr std::uint32_t tries_max = 8;
constexpr std::size_t losses_min = 3;  // of two it cannot be told whose is wrong
constexpr Duration rest_min = std::chrono::seconds(10);
constexpr std::uint32_t rest_doublings_max = 6;
// looks after which it is forgotten that a model broke
constexpr std::uint64_t recovered_after = 500;

bool is_power_of_two(std::uint64_t x) { return x > 0 && (x & (x - 1)) == 0; }

}  // namespace

bool NodeImpl::guards_steps() const { return config_.exchange.step_jump > 0; }

// One block of the model since the last look. base_: the model as it was handed out.
void NodeImpl::measure_own_step(std::size_t index) {
  const Block& block = schema_.blocks()[index];
  const auto now = block.of(std::span<const float>(incoming_)),
             before = block.of(std::span<const float>(base_));
  const ChangeNorms norms = kernels().distance(now, before);
  Movement& movement =
      block.kind == SegmentKind::parameter ? own_move_.parameters : own_move_.statistics;
  movement.moved_squared += norms.change_squared;
  movement.before_squared += norms.reference_squared;
  movement.after_squared += mean_square(now) * static_cast<double>(now.size());
  own_moved_[index] = std::sqrt(norms.change_squared);
}

// False: the look has jumped, and the trainer has been given its former model again.
bool NodeImpl::believe_own_step() {
  own_move_.steps = last_.step - std::min(last_.step, base_step_);
  own_move_.learning_rate = last_.learning_rate;
  own_move_.loss = last_.loss;
  own_move_.loss_worst = last_.loss_worst;
  const std::optional<Jump> jump = guard_.judge(own_move_);
  if (!jump) return true;
  if (*jump == Jump::not_finite && guard_.jumps_in_a_row() > tries_max) return false;
  take_back(*jump);
  return false;
}

// The trainer's numbers are no longer finite. Its former model is a look old at most.
bool NodeImpl::take_back_broken() {
  if (!guards_steps() || !base_valid_) return false;
  own_move_ = {};
  own_move_.parameters.moved_squared = std::numeric_limits<double>::infinity();
  (void)guard_.judge(own_move_);
  if (guard_.jumps_in_a_row() > tries_max || !kernels().all_finite(base_)) return false;
  take_back(Jump::not_finite);
  return true;
}

void NodeImpl::take_back(Jump jump) {
  // A node that keeps jumping says so ever more seldom.
  if (is_power_of_two(guard_.jumps_in_a_row()))
    log(Level::warning, std::string("event=step-taken-back reason=") + to_string(jump) + " step=" +
                            std::to_string(last_.step) + " back_to=" + std::to_string(base_step_) +
                            " in_a_row=" + std::to_string(guard_.jumps_in_a_row()) +
                            " in_all=" + std::to_string(guard_.jumps()) +
                            " loss=" + std::to_string(last_.loss_worst) +
                            " hint=\"look for a bad sample among those of these steps\"");
  last_.finite = true;
  base_step_ = last_.step;
  std::ranges::copy(base_, incoming_.begin());
  hand_out(std::move(incoming_), true);
}

// Who breaks again and again rests longer and longer.
void NodeImpl::rest_broken() {
  if (guard_.jumps_in_a_row() == 0) return;
  if (guard_.believed() > recovered_after) rests_ = 0;
  rest_until_ = snapshot_at_ + rest_min * (1u << std::min(rests_, rest_doublings_max));
  ++rests_;
}

// As a member says it; a link brings it sooner than gossip. 0: not known.
double NodeImpl::loss_of(NodeId member) const {
  if (member == state_.id) return last_.loss;
  const auto found = neighbours_.find(member);
  if (found != neighbours_.end() && found->second.link && found->second.link->is_open() &&
      found->second.link->loss_said() > 0)
    return found->second.link->loss_said();
  const auto* entry = directory_.find(member);
  return entry == nullptr ? 0 : entry->record.loss;
}

// A neighbour whose own loss is far beyond the members' median trains on something else: bad data,
// a wild rate.
bool NodeImpl::is_trusted(NodeId peer) const {
  if (config_.exchange.loss_ratio_max <= 0 || !steps_allowed()) return true;
  const double theirs = loss_of(peer);
  if (theirs <= 0) return true;
  std::vector<double> losses;
  for (const auto& [id, entry] : directory_.entries())
    if (entry.record.state == MemberState::alive &&
        (entry.record.phase == Phase::training || id == peer))
      if (const double loss = loss_of(id); loss > 0) losses.push_back(loss);
  if (losses.size() < losses_min) return true;
  const auto middle = losses.begin() + static_cast<std::ptrdiff_t>((losses.size() - 1) / 2);
  std::nth_element(losses.begin(), middle, losses.end());
  return theirs <= config_.exchange.loss_ratio_max * *middle;
}

void NodeImpl::rest_offenders(Instant now) {
  for (const NodeId peer : round_links_) {
    Neighbour& neighbour = neighbours_[peer];
    if (!neighbour.link || !neighbour.link->take_offence()) continue;
    if (Session* session = session_of(peer))
      quarantine(*session, "its model keeps pulling too far", now);
  }
}

}  // namespace gossipd
