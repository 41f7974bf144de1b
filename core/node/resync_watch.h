// core/node/resync_watch.h - how much of the model one peer asks for again.
//
// The problem: a block whose record was refused is asked for again and goes whole with the next
// turn, whatever the trigger and the budget of bytes say. A peer that asks for all of them after
// every turn makes its neighbour send nothing but whole models.
//
// The answer: a bucket of blocks, which each turn spoken to the peer empties by a part of the
// model. Pure; one owner, the core strand.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gossipd {

class ResyncWatch {
 public:
  static constexpr double models_max = 3;        // at once
  static constexpr double share_of_turn = 0.25;  // of a model, for each turn

  // The peer asks for `fresh` of `all` blocks after so many turns have been spoken to it. True: it
  // has asked for too much, and the count begins anew.
  [[nodiscard]] bool on_asked(std::size_t fresh, std::size_t all, std::uint64_t turns) {
    const auto passed = static_cast<double>(turns - std::min(turns, turns_));
    const auto model = static_cast<double>(all);
    turns_ = turns;
    asked_ = std::max(0.0, asked_ - passed * share_of_turn * model) + static_cast<double>(fresh);
    const bool too_much = asked_ > models_max * model;
    if (too_much) asked_ = 0;
    return too_much;
  }

 private:
  std::uint64_t turns_ = 0;
  double asked_ = 0;  // blocks
};

}  // namespace gossipd
