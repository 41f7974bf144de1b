// core/correction/correction.h - what one link does about a neighbour's model being old or worse.
//
// The problem: a replica is compared with a model that has moved on meanwhile, and a neighbour that
// learns worse pulls as hard as one that learns better.
//
// The answer, each part off by default: the replica is moved along the own drift to the time of the
// own replica it is compared with (future_position.h), damped by curvature (curvature.h); and the
// neighbour's loss is forecast to now, so that its model can be weighed by it (loss_trust.h). One
// Correction for each epoch of a link. Pure; core strand. Steps are own steps, if not the peer's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/correction/curvature.h"
#include "core/correction/future_position.h"
#include "core/correction/loss_trust.h"

namespace gossipd {

struct CorrectionPolicy {
  // c: how far a replica is moved along the own drift, of the way to the time it is compared with.
  double future_position = 0;
  double drift_window_steps = 32;  // moving average behind the drift
  double curvature = 0;            // λ: damping of that move; 0: none
  CurvatureMode curvature_mode = CurvatureMode::constant;
  LossTrust loss_trust = LossTrust::off;  // forecast of the peer's loss that weighs its model
  double loss_trust_max = 2.0;            // the factor on the peer's weight lies in [1/max, max]
};

class Correction {
 public:
  explicit Correction(const CorrectionPolicy& policy);  // which must outlive it

  // The peer's smoothed training loss at one of its steps, as a turn told it.
  void observe(Step peer_step, double loss);
  // That loss so many of the peer's steps later; 0: not known, or loss trust is off.
  [[nodiscard]] double peer_loss(double peer_steps_since) const;

  // How far the replica received is to be moved, for a transfer of this gain. Ages since the two
  // snapshots were taken; a difference beyond the drift's window counts as the window, since after
  // a cut the ages may be hours apart.
  [[nodiscard]] FuturePosition position(double gain, double received_age, double own_age) const;
  // Adds the move of one block of parameters to `update`; returns the square of the norm added.
  double add_to(std::span<float> update, std::size_t block, const FuturePosition& position,
                std::span<const float> model, std::span<const float> drift);

 private:
  const CorrectionPolicy& policy_;
  std::unique_ptr<LossForecaster> forecaster_;  // null: loss trust is off
  // Of each block the moving average of mean(drift²); only with adaptive curvature, else empty.
  std::vector<double> drift_squares_;
};

}  // namespace gossipd
