// tools/lab/references/dc_asgd.cpp - DC-ASGD: a late gradient is moved to where the model is now,
// by a cheap curvature.
//
//   constant:  λ = λ0                                       (λ0 = 0.04)
//   adaptive:  MS = m·MS + (1−m)·g⊙g ;  λ = λ0/√(MS + ε)     (λ0 = 2, m = 0.95, ε = 1e-7)
//   g_c = g + λ·g⊙g⊙(x − x_bak(i)) ;  x −= η·(g_c + wd·x)
//     x_bak(i): what worker i was sent, the initial model at first
//
// Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation" (ICML 2017);
// certain, weight decay outside the compensation as in MXNet's implementation. The paper's formula
// has no momentum: the default here. One MS for all workers.
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class DcAsgd : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    table.one_of("strategy.mode", "", mode_, {"constant", "adaptive"},
                 "the same lambda for every parameter, or by the gradient's size");
    table.number("strategy.lambda0", "", "", lambda0_, 0, 1e6,
                 "strength; 0 means the paper's: 0.04 constant, 2 adaptive");
    table.number("strategy.m", "", "", m_, 0, 1,
                 "adaptive: how slowly the mean square of the gradients moves");
    add_momentum(table, momentum_);
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    return sgd_only(job, "dc-asgd compensates for the delay of SGD's steps");
  }
  State state() const override {
    return {optimizer_floats(momentum_) + (nodes() + (mode_ == Mode::adaptive ? 1 : 0)) * floats(),
            0};
  }

 protected:
  void prepare() override { mean_square_.assign(floats(), 0.0f); }

  void take_in(const Landing& landing) override {
    const double paper = mode_ == Mode::constant ? 0.04 : 2.0;
    const float lambda = static_cast<float>(lambda0_ > 0 ? lambda0_ : paper);
    if (mode_ == Mode::constant)
      delay_compensate(lambda, landing.values, model_, landing.taken_at);
    else
      delay_compensate_adaptive(lambda, static_cast<float>(m_), mean_square_, landing.values,
                                model_, landing.taken_at);
    descend(momentum_, landing.worker, landing.learning_rate, landing.values);
    updated();
  }

 private:
  enum class Mode { constant, adaptive };
  Mode mode_ = Mode::adaptive;
  double lambda0_ = 0;
  double m_ = 0.95;
  Momentum momentum_ = Momentum::none;
  Vector mean_square_;
};

}  // namespace

std::unique_ptr<Strategy> make_dc_asgd() { return std::make_unique<DcAsgd>(); }

}  // namespace gossipd::lab
