// tools/lab/references/lc_asgd.cpp - LC-ASGD: a late gradient is scaled by what the loss will have
// become when it lands.
//
//   g_c = g · clamp( ℓ̂(now) / ℓ(then), lo, hi ) ;  then the job's SGD
//
// Li, He, Ren, Mao, "LC-ASGD" (ICPP 2020): the server predicts each worker's lag and loss with
// LSTMs and compensates the loss. Known to us from the abstract only; added as a constant a
// compensation would not change the gradient, hence the scale: our reading. ℓ̂ is forecast from
// this worker's losses, one observation for each gradient, time counted in updates of the server:
// as the gradient lands its lag is known and need not be predicted. The predictors are the core's
// (core/correction/loss_trust.h). ℓ(then) is the loss of that batch as observed, so a gradient of a
// hard batch is scaled down, and one of an easy batch up, without any delay, too.
#include "core/correction/loss_trust.h"
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class LcAsgd : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    table.one_of("strategy.predictor", "", predictor_, {"holt", "lstm"},
                 "level and slope, or a small LSTM trained on line");
    table.number("strategy.scale_min", "", "", lowest_, 0, 1,
                 "a gradient is scaled by at least so much");
    table.number("strategy.scale_max", "", "", highest_, 1, 100, "and by at most so much");
    add_momentum(table, momentum_);
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    return sgd_only(job, "lc-asgd scales SGD's steps by way of the gradient");
  }
  State state() const override { return {optimizer_floats(momentum_), 0}; }

 protected:
  void prepare() override {
    for (std::size_t i = 0; i < nodes(); ++i)
      forecasters_.push_back(
          make_forecaster(predictor_ == Predictor::holt ? LossTrust::holt : LossTrust::lstm));
  }

  void take_in(const Landing& landing) override {
    LossForecaster& forecaster = *forecasters_[landing.worker];
    // The loss is that of the model as it was sent, `age` updates ago; steps count from 1.
    forecaster.observe(updates_ - static_cast<Step>(landing.age) + 1, landing.loss);
    const double forecast = forecaster.forecast(landing.age);
    double scale = landing.loss > 0 && forecast > 0 ? forecast / landing.loss : 1.0;
    scale = std::clamp(scale, lowest_, highest_);
    for (float& g : landing.values) g *= static_cast<float>(scale);
    descend(momentum_, landing.worker, landing.learning_rate, landing.values);
    updated();
    ++updates_;
  }

 private:
  enum class Predictor { holt, lstm };
  Predictor predictor_ = Predictor::holt;
  double lowest_ = 0.5, highest_ = 2.0;
  Momentum momentum_ = Momentum::shared;
  std::vector<std::unique_ptr<LossForecaster>> forecasters_;
  Step updates_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_lc_asgd() { return std::make_unique<LcAsgd>(); }

}  // namespace gossipd::lab
