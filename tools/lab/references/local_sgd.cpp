// tools/lab/references/local_sgd.cpp - local SGD: H steps on every machine, then the models are
// averaged.
//
//   x ← x + mean_i (x_i − x)   after H steps
//   quadratic rule: H = max(H_base, ⌊(α/η)²⌋), η at the round's beginning, in the warm-up its peak
//   overlap: x_i ← x_i + mean_j y_j − y_i after H steps, y the models when the round before ended
//
// Stich, "Local SGD Converges Fast and Communicates Little" (2019); Gu et al., "A Quadratic
// Synchronization Rule for Distributed Deep Learning" (ICLR 2024); the overlap: Shen et al.,
// "Faster Distributed Deep Net Training: Computation and Communication Decoupled Stochastic
// Gradient Descent" (IJCAI 2019). Certain. The optimiser's state stays on its machine. A codec
// other than fp32 is applied to the differences, with error feedback (ours).
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class LocalSgd : public RoundTraining {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = round_settings();
    SettingTable table(settings);
    table.one_of("strategy.rule", "", rule_, {"fixed", "quadratic"}, "how many steps a round has");
    table.integer("strategy.period", "", "steps", period_steps_, 1, 1'000'000,
                  "fixed: steps of a round; quadratic: the fewest (H_base)");
    table.number("strategy.alpha", "", "", alpha_, 0, 1e6,
                 "quadratic: rounds grow as (alpha / learning rate)^2");
    table.boolean("strategy.overlap", "", overlap_,
                  "a round's average is under way during the next round; fp32 only");
    return settings;
  }
  [[nodiscard]] std::optional<std::string> mistake(const Job&) const override {
    if (!overlap_ || codec().id == CodecId::fp32) return std::nullopt;
    return "strategy.overlap averages whole models; set strategy.codec = \"fp32\"";
  }

 protected:
  std::uint64_t period() override {
    if (rule_ == Rule::fixed) return period_steps_;
    return quadratic_period(period_steps_, alpha_,
                            warming_up() ? learning_rate_peak(job()) : learning_rate());
  }
  void outer_step(const Vector& change) override {
    for (std::size_t p = 0; p < floats(); ++p) shared()[p] += change[p];
  }
  [[nodiscard]] std::uint64_t outer_floats() const override { return overlap_ ? floats() : 0; }
  [[nodiscard]] bool overlaps() const override { return overlap_; }

 private:
  enum class Rule { fixed, quadratic };
  Rule rule_ = Rule::fixed;
  std::uint64_t period_steps_ = 4;
  double alpha_ = 0.2;
  bool overlap_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_local_sgd() { return std::make_unique<LocalSgd>(); }

}  // namespace gossipd::lab
