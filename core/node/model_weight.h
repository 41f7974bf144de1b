// core/node/model_weight.h - what a node's model weighs when it is mixed with a neighbour's.
//
// The problem: a node that comes, or comes back, has a model that is older or worse than the
// others', and an exchange would take half of it.
//
// The answer: the weight of a newcomer begins at `joiner_weight` and rises to 1 over `joiner_steps`
// own steps. A node that reaches the end of the job without an own step since it came, or with a
// model from before it came and no exchange since then, keeps the small weight for the final
// exchange, since its model may be older than the others'. With batch balancing the weight is
// multiplied by the share of the minibatch. Pure; core strand.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/exchange/policy.h"

namespace gossipd {

class ModelWeight {
 public:
  // The model is a newcomer's from this own step on, after so many exchanges; `alone`: there is
  // nobody to be new to.
  void join(Step step, std::uint64_t exchanges, bool alone = false) {
    ramping_ = !alone, joined_at_ = step, exchanges_before_ = exchanges;
  }
  // The job's end is reached.
  void finish(Step step, std::uint64_t exchanges) {
    const bool from_before = joined_at_ > 0 && exchanges == exchanges_before_;
    late_ = ramping_ && (step == joined_at_ || from_before);
  }
  // The models have become one.
  void agree() { late_ = false; }

  // While training, at own step `step`; `batch_share`: of the minibatch.
  [[nodiscard]] float training(const ExchangePolicy& policy, Step step, double batch_share) const {
    if (!ramping_) return static_cast<float>(batch_share);
    const double steps = static_cast<double>(step - std::min(step, joined_at_));
    const double share = policy.joiner_steps == 0
                             ? 1.0
                             : std::min(1.0, steps / static_cast<double>(policy.joiner_steps));
    return static_cast<float>(batch_share *
                              (policy.joiner_weight + (1.0 - policy.joiner_weight) * share));
  }
  [[nodiscard]] float at_rest(const ExchangePolicy& policy) const {
    return late_ ? static_cast<float>(policy.joiner_weight) : 1.0f;
  }

 private:
  bool ramping_ = false;                // it has come since the cluster was founded
  Step joined_at_ = 0;                  // own step at which it came last
  std::uint64_t exchanges_before_ = 0;  // of its life before
  bool late_ = false;                   // it came too late to become like the others'
};

}  // namespace gossipd
