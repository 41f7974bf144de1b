// core/node/own_steps.h - what a node's own steps have done to its model between two looks.
//
// The problem: a look has to decide whether the steps since the last one are to be believed, before
// a neighbour hears of them; and two parts of the exchange need to know how far they led: the outer
// momentum (by block) and the future position (a drift).
//
// The answer: one walk over the blocks measures the move, judge() holds it against the past
// (core/exchange/step_guard.h), and a second walk, over a move that is believed, adds it to what
// was travelled. A move that is not believed is taken back at most `tries_max` times in a row if it
// is not finite; then the model itself counts as broken. A model that comes back from far away,
// as its norm tells, has no drift: those steps say nothing about where it goes from there. Pure;
// core strand. Memory: P floats if there is a drift, else one number for each block.
#pragma once

#include <string>
#include <vector>

#include "core/exchange/policy.h"
#include "core/exchange/step_guard.h"
#include "core/exchange/trainer_port.h"
#include "core/model/schema.h"

namespace gossipd {

class OwnSteps {
 public:
  static constexpr std::uint32_t tries_max = 8;
  // of the squared norm that a look has left, or less: the model comes back from far away
  static constexpr double return_share = 0.9;
  enum class Verdict : std::uint8_t { believed, take_back, broken };

  // Both must outlive it.
  OwnSteps(const ExchangePolicy& policy, const Schema& schema)
      : policy_(policy), schema_(schema), guard_(policy.guard.step_jump) {}

  // A look begins: nothing is measured yet. `with_drift`: a drift is followed from now on.
  void begin(bool with_drift);
  // Of a block: the model now, and as it was handed out. Norms of several blocks may be computed at
  // once; they are added in the order of the blocks.
  struct Norms {
    double moved_squared = 0, before_squared = 0, after_squared = 0;
  };
  [[nodiscard]] static Norms norms_of(std::span<const float> now, std::span<const float> before);
  void add(std::size_t block, const Norms& norms);
  // After all blocks: `steps` own steps led there, and the snapshot tells their losses.
  [[nodiscard]] Verdict judge(const Snapshot& snapshot, Step steps);
  // Instead of all that: the trainer says that its model is not finite any more. It was handed out
  // `before`; none: that is not known.
  [[nodiscard]] Verdict judge_not_finite(std::optional<std::span<const float>> before);
  // Block by block, of a move that is believed, over `steps` own steps, at least one.
  void add(std::size_t block, std::span<const float> now, std::span<const float> before,
           Step steps);

  // Neighbours have moved the model by so much since the last look.
  void pushed(double norm) { guard_.pushed(norm); }
  // The model is another one.
  void forget();

  // Own displacement for each step, a moving average; empty: none is followed.
  [[nodiscard]] std::span<const float> drift() const { return drift_; }
  // What a step usually moves a parameter by at this learning rate, the root of the mean square
  // over all parameters; 0: not known. A trainer that tells no rate (0) has always the same.
  [[nodiscard]] double usual_step(double learning_rate) const;
  // Of each block the norms of all moves so far, summed up; empty: the exchange is off.
  [[nodiscard]] std::span<const double> travelled() const { return travelled_; }
  [[nodiscard]] const StepGuard& guard() const { return guard_; }
  // What most own steps suffer from, and the way out; empty: nothing.
  [[nodiscard]] std::string trouble(double learning_rate) const;
  // Why the last look was taken back, for the log.
  [[nodiscard]] Jump last_jump() const { return last_jump_; }

 private:
  void remember_pace(const Snapshot& snapshot);
  [[nodiscard]] bool guards() const { return policy_.guard.step_jump > 0; }
  [[nodiscard]] bool comes_back() const {
    return move_.parameters.after_squared < return_share * move_.parameters.before_squared;
  }

  const ExchangePolicy& policy_;
  const Schema& schema_;
  StepGuard guard_;
  RecentValues paces_;  // norms of what a step moved the parameters by, over the learning rate
  OwnMove move_;        // since the last look, of the blocks measured so far
  std::vector<double> moved_;      // of each block: the norm of that move
  std::vector<double> travelled_;  // one for each block, or empty
  std::vector<float> drift_;       // P floats, or empty
  Jump last_jump_ = Jump::not_finite;
};

}  // namespace gossipd
