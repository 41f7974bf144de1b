// core/correction/loss_trust.h - how much a neighbour's model counts, by what its loss will be by
// now: LC-ASGD for gossip.
//
// LC-ASGD (Li, He, Ren, Mao, ICPP 2020) predicts on the server, from the history of each worker's
// losses and delays, the loss at the time its gradient lands, and compensates with it. Without a
// server each end of a link forecasts the other's loss to now, from what came with the turns (step
// and smoothed training loss), and multiplies the other's weight by
//
//     trust = clamp(own loss / forecast loss of the peer, 1/max, max)
//
// in the gains of a turn: g_self·w_self = g_peer·(trust·w_peer), so what one gains the other still
// gives. Two predictors: Holt's double exponential smoothing (level + slope, here for unequal
// spacing), and a small LSTM trained on line (lstm.h), on the log of the ratio of successive
// losses. A forecast stays within a factor of 2 of the last loss. Losses are positive; others are
// not taken in. Steps are the peer's. Pure; core strand.
#pragma once

#include <memory>

#include "core/base/types.h"

namespace gossipd {

enum class LossTrust : std::uint8_t { off, holt, lstm };  // which predictor

inline constexpr double forecast_factor_max = 2.0;

class LossForecaster {
 public:
  virtual ~LossForecaster() = default;
  // The loss at a later step than the one before; an equal or earlier step is not taken in.
  void observe(Step step, double loss);
  // `steps` after the last one observed; 0 when nothing has been observed.
  [[nodiscard]] double forecast(double steps) const;

 protected:
  virtual void learn(double steps_since, double loss) = 0;  // of the second observation on
  virtual void start(double loss) = 0;
  [[nodiscard]] virtual double predict(double steps) const = 0;

 private:
  Step step_ = 0;
  double loss_ = 0;  // the last; 0: none
};

class HoltForecaster final : public LossForecaster {
 public:
  static constexpr double level_weight = 0.5;  // of the newest loss
  static constexpr double slope_weight = 0.2;

 private:
  void start(double loss) override { level_ = loss; }
  void learn(double steps_since, double loss) override;
  [[nodiscard]] double predict(double steps) const override { return level_ + slope_ * steps; }

  double level_ = 0;
  double slope_ = 0;  // per step
};

// Null for LossTrust::off.
[[nodiscard]] std::unique_ptr<LossForecaster> make_forecaster(LossTrust kind);

// 1 when either loss is not known (not positive and finite). max at least 1.
[[nodiscard]] double loss_trust(double own_loss, double peer_loss, double max);

}  // namespace gossipd
