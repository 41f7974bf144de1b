// tools/lab/references/sparseloco.cpp - SparseLoCo: DiLoCo whose differences are sparse 2-bit
// values, and error feedback for outer momentum.
//
//   e_i = β·e_i + (x_i − x) ;  q_i = Q(TopK(e_i)) per chunk ;  e_i −= q_i ;  x += ρ·mean_i q_i
//     β = 0.95, ρ = 1
//
// Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (2025); formula certain
// from the abstract and by what it is compared with, H = 30 and ρ = 1 from memory. TopK and Q are
// core's top_k codec (chunks of 1,024, 2-bit values) in place of theirs (chunks of 4,096): by
// default 32 entries of each chunk. All-gather, as theirs.
#include "tools/lab/references/local_training.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class SparseLoco : public RoundTraining {
 public:
  SparseLoco() {
    codec_default({CodecId::top_k, 32});
    transport_default(Transport::all_gather);
  }
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = round_settings();
    SettingTable table(settings);
    table.integer("strategy.period", "", "steps", period_steps_, 1, 1'000'000,
                  "H, steps of a round");
    table.number("strategy.outer_rate", "", "", rate_, 0, 10, "learning rate of the outer step");
    table.number("strategy.error_decay", "", "", decay_, 0, 1,
                 "beta: what is left of the error at the next round");
    return settings;
  }

 protected:
  std::uint64_t period() override { return period_steps_; }
  double error_decay() const override { return decay_; }
  void outer_step(const Vector& change) override {
    for (std::size_t p = 0; p < floats(); ++p) shared()[p] += static_cast<float>(rate_) * change[p];
  }

 private:
  std::uint64_t period_steps_ = 30;
  double rate_ = 1.0, decay_ = 0.95;
};

}  // namespace

std::unique_ptr<Strategy> make_sparseloco() { return std::make_unique<SparseLoco>(); }

}  // namespace gossipd::lab
