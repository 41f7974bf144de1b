// tools/lab/references/diloco.cpp - DiLoCo: H steps on every machine, then one Nesterov step of the
// shared model on their mean difference.
//
//   Δ = mean_i (x − x_i) ;  m = μ·m + Δ ;  x −= ρ·(Δ + μ·m)          ρ = 0.7, μ = 0.9, H = 500
//
// Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023);
// certain. Its inner optimiser is AdamW, here the job's; inner state stays on its machine and lives
// on. A codec other than fp32: on the differences, with error feedback (ours).
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class Diloco : public RoundTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = round_settings();
    SettingTable table(settings);
    table.integer("strategy.period", "", "steps", period_steps_, 1, 1'000'000,
                  "H, steps of a round");
    table.number("strategy.outer_rate", "", "", rate_, 0, 10, "learning rate of the outer step");
    table.number("strategy.outer_momentum", "", "", momentum_, 0, 1,
                 "Nesterov momentum of the outer step");
    return settings;
  }

 protected:
  std::uint64_t period() override { return period_steps_; }
  std::uint64_t outer_floats() const override { return floats(); }

  void outer_step(const Vector& change) override {
    outer_.resize(floats());
    const float rate = static_cast<float>(rate_), mu = static_cast<float>(momentum_);
    for (std::size_t p = 0; p < floats(); ++p) {
      const float delta = -change[p];
      outer_[p] = mu * outer_[p] + delta;
      shared()[p] -= rate * (delta + mu * outer_[p]);
    }
  }

 private:
  std::uint64_t period_steps_ = 500;
  double rate_ = 0.7, momentum_ = 0.9;
  Vector outer_;
};

}  // namespace

std::unique_ptr<Strategy> make_diloco() { return std::make_unique<Diloco>(); }

}  // namespace gossipd::lab
