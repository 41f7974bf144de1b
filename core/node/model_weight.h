// core/node/model_weight.h - what a node's model weighs when it is mixed with a neighbour's.
//
// The problem: a node that comes, or comes back, has a model that is older or worse than the
// others', and an exchange would take half of it.
//
// The answer: the weight of a newcomer begins at `joiner_weight` and rises to 1 over `joiner_steps`
// own steps. Where no steps are made it rises, and stays, when most of another model has been
// taken: gains add up, of exchanges with neighbours that weigh more than twice as much. A node that
// reaches the job's end without an own step since it came, or with a model from before and a weight
// that has not risen, keeps the small weight for the final exchange, since its model may be older
// than the others'. With batch balancing the weight is multiplied by the share of the minibatch.
// Pure; core strand.
#pragma once

#include <algorithm>

#include "core/exchange/policy.h"

namespace gossipd {

class ModelWeight {
 public:
  static constexpr double most_of_a_model = 0.75;  // sum of gains

  // The model is a newcomer's from this own step on, when the gains of all exchanges added up to
  // `taken`; `alone`: there is nobody to be new to.
  void join(Step step, double taken, bool alone = false) {
    ramping_ = !alone, joined_at_ = step, taken_before_ = taken;
  }
  // The job's end is reached.
  void finish(const ExchangePolicy& policy, Step step, double taken) {
    const bool has_risen = step - std::min(step, joined_at_) >= policy.joiner_steps;
    const bool from_before = joined_at_ > 0 && !has_risen && !has_taken_over(taken);
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
  // Before the job's end, where no steps are made.
  [[nodiscard]] float interrupted(const ExchangePolicy& policy, Step step, double taken,
                                  double batch_share) const {
    return has_taken_over(taken) ? static_cast<float>(batch_share)
                                 : training(policy, step, batch_share);
  }
  // Steps are made again.
  void go_on(double taken) { ramping_ = ramping_ && !has_taken_over(taken); }
  [[nodiscard]] float at_end(const ExchangePolicy& policy) const {
    return late_ ? static_cast<float>(policy.joiner_weight) : 1.0f;
  }

 private:
  [[nodiscard]] bool has_taken_over(double taken) const {
    return taken - taken_before_ >= most_of_a_model;
  }

  bool ramping_ = false;     // it has come since the cluster was founded
  Step joined_at_ = 0;       // own step at which it came last
  double taken_before_ = 0;  // until then
  bool late_ = false;        // it came too late to become like the others'
};

}  // namespace gossipd
