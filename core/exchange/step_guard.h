// core/exchange/step_guard.h - whether a node's own steps since its last look are to be believed.
//
// The problem: one bad sample, a device fault or a rate too high throws a model far away in one
// step. A look later its neighbours have half of it, and two looks later everybody.
//
// The answer: before anybody is told of a look, it is compared with the node's own recent past. A
// look has jumped if one of its steps had a loss beyond `loss_jump` times the worst of the last
// `window` looks (and beyond any smoothed loss so far), or if the model has moved
//
//   faster than `step_jump` times the median of the last `window` looks, in norm per step and
//     learning rate,
//   and by more than `share_min` of its own norm,
//   and by more than `push_share` times what neighbours have moved it by lately (a large step then
//     only answers that push).
//
// Parameters and statistics are judged apart; the pace of statistics is not divided by the learning
// rate. A look that jumped is not added to the past. A model that comes back from far away takes
// large steps as well, so a jump to a smaller norm is believed. Where the pace has really changed
// the guard gives in: each refusal in a row raises its limits by a fifth, to `allowance_max` times
// at most, and after `give_in_after` refusals it learns the pace anew. A move of more than
// `growth_max` times the model's norm is never believed, with or without a past; nothing else is
// judged before `looks_min` looks. Pure; one owner.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "core/base/types.h"

namespace gossipd {

// Of the last `size` values; no order.
class RecentValues {
 public:
  static constexpr std::size_t size = 32;
  void add(double value);
  void clear() { count_ = 0; }
  [[nodiscard]] std::size_t count() const { return count_ < size ? count_ : size; }
  [[nodiscard]] double median() const;  // 0 of none
  [[nodiscard]] double largest() const;

 private:
  std::array<double, size> values_{};
  std::size_t count_ = 0;  // ever added
};

// What one kind of segments has done since the last look.
struct Movement {
  double moved_squared = 0;   // ‖x_now − x_before‖²
  double before_squared = 0;  // ‖x_before‖²
  double after_squared = 0;   // ‖x_now‖²
};

// One look: what `steps` own steps have made of the model.
struct OwnMove {
  Movement parameters, statistics;
  Step steps = 1;  // 0: at rest, where nothing moves
  double learning_rate = 0;
  double loss = 0;        // smoothed
  double loss_worst = 0;  // of one of the steps; 0: not known
};

enum class Jump : std::uint8_t { not_finite, loss, parameters, statistics };
[[nodiscard]] const char* to_string(Jump);

class StepGuard {
 public:
  static constexpr std::size_t window = RecentValues::size;
  static constexpr std::size_t looks_min = 8;
  static constexpr double loss_jump = 8;
  static constexpr double share_min = 0.02;
  static constexpr double push_share = 2;
  static constexpr double allowance_growth = 1.2;
  static constexpr double allowance_max = 1.5;
  static constexpr double growth_max = 4;
  static constexpr std::uint32_t give_in_after = 16;

  explicit StepGuard(double step_jump) : step_jump_(step_jump) {}

  // A look that has not jumped becomes part of the past.
  [[nodiscard]] std::optional<Jump> judge(const OwnMove&);
  // Neighbours have moved the model by this norm since the last look.
  void pushed(double norm);
  // The model is another one: its pace is not known.
  void forget();

  [[nodiscard]] std::uint32_t jumps_in_a_row() const { return in_a_row_; }
  [[nodiscard]] std::uint64_t jumps() const { return jumps_; }
  // Most looks have jumped since the node started: no bad sample does that, but a learning rate.
  [[nodiscard]] bool jumps_mostly() const { return jumps_ >= looks_min && 2 * jumps_ > looks_; }
  [[nodiscard]] std::uint64_t believed() const { return believed_; }  // looks at this model

 private:
  [[nodiscard]] std::optional<Jump> jump_of(const OwnMove&) const;
  [[nodiscard]] bool is_far(const Movement&, double pace, const RecentValues& past) const;

  const double step_jump_;
  RecentValues parameter_pace_, statistic_pace_, worst_losses_;
  double highest_loss_ = 0;  // smoothed, since the model is this one
  double pushed_ = 0;        // lately
  double allowance_ = 1;
  std::uint32_t in_a_row_ = 0;
  std::uint64_t jumps_ = 0, believed_ = 0;
  std::uint64_t looks_ = 0;  // judged, with steps; never forgotten, like jumps_
};

}  // namespace gossipd
