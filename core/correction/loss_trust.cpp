#include "core/correction/loss_trust.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/result.h"
#include "core/correction/lstm.h"

namespace gossipd {
namespace {

bool usable(double loss) { return std::isfinite(loss) && loss > 0; }

constexpr std::uint64_t lstm_seed = 0x6c73746d;
constexpr double steps_scale = 8.0;      // of log(1 + steps), so that inputs are about 1
constexpr double scale_smoothing = 0.1;  // of the size of a log ratio
constexpr double scale_least = 1e-4;

// Input at an observation: (log ratio to the one before / its usual size, its spacing, the spacing
// to the one predicted).
class LstmForecaster final : public LossForecaster {
 public:
  LstmForecaster() : network_(3, lstm_seed) {}

 private:
  void start(double loss) override { loss_ = loss; }

  void learn(double steps_since, double loss) override {
    const double ratio = std::log(loss / loss_);
    loss_ = loss;
    if (known_) {
      // What was to be predicted is known now: one step of gradient descent through the window.
      network_.train(input(steps_since), ratio / scale_);
    }
    scale_ = std::max(scale_least, known_ ? scale_ + scale_smoothing * (std::abs(ratio) - scale_)
                                          : std::abs(ratio));
    last_ratio_ = ratio / scale_;
    last_steps_ = steps_since;
    known_ = true;
  }

  [[nodiscard]] double predict(double steps) const override {
    return known_ ? loss_ * std::exp(std::clamp(network_.predict(input(steps)) * scale_, -1.0, 1.0))
                  : loss_;
  }

  [[nodiscard]] std::vector<double> input(double ahead) const {
    return {std::clamp(last_ratio_, -4.0, 4.0), std::log1p(last_steps_) / steps_scale,
            std::log1p(ahead) / steps_scale};
  }

  Lstm network_;
  double loss_ = 0, scale_ = 1, last_ratio_ = 0, last_steps_ = 0;
  bool known_ = false;
};

}  // namespace

void LossForecaster::observe(Step step, double loss) {
  if (!usable(loss) || (loss_ > 0 && step <= step_)) return;
  if (loss_ > 0)
    learn(static_cast<double>(step - step_), loss);
  else
    start(loss);
  step_ = step;
  loss_ = loss;
}

double LossForecaster::forecast(double steps) const {
  if (loss_ <= 0) return 0;
  const double value = predict(std::max(0.0, steps));
  return std::isfinite(value)
             ? std::clamp(value, loss_ / forecast_factor_max, loss_ * forecast_factor_max)
             : loss_;
}

void HoltForecaster::learn(double steps_since, double loss) {
  const double before = level_;
  level_ = level_weight * loss + (1 - level_weight) * (level_ + slope_ * steps_since);
  slope_ = slope_weight * (level_ - before) / steps_since + (1 - slope_weight) * slope_;
}

std::unique_ptr<LossForecaster> make_forecaster(LossTrust kind) {
  switch (kind) {
    case LossTrust::off: return nullptr;
    case LossTrust::holt: return std::make_unique<HoltForecaster>();
    case LossTrust::lstm: return std::make_unique<LstmForecaster>();
  }
  GOSSIPD_ASSERT(!"a LossTrust without a forecaster");
}

double loss_trust(double own_loss, double peer_loss, double max) {
  if (!usable(own_loss) || !usable(peer_loss)) return 1;
  const double most = std::max(1.0, max);
  return std::clamp(own_loss / peer_loss, 1 / most, most);
}

}  // namespace gossipd
