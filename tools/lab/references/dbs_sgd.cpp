// tools/lab/references/dbs_sgd.cpp - DBS-SGD: synchronous SGD in which a faster machine gets a
// larger part of the batch.
//
//   b_i such that a_i + c_i·b_i is the same for all i, Σ b_i = N·batch
//   x: the job's optimiser on Σ b_i·g_i / Σ b_i
//
// Ji et al., "Dynamic Batch Size" for distributed SGD with a parameter server (2019); known to us
// from the abstract: b_i ∝ speed is certain, fitting t(b) = a + c·b on line, its dead band (new
// sizes only when one of them would move by more) and bounds are ours. The speed is that of the
// computing alone. The first round gives everybody the job's batch.
#include <cmath>

#include "tools/lab/references/batch_sizing.h"
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class DbsSgd : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    table.number("strategy.dead_band", "", "", dead_band_, 0, 10,
                 "batches change only when one of them would by more than this share");
    table.integer("strategy.batch_min", "", "samples", least_, 1, 1'000'000,
                  "no machine gets less");
    table.integer("strategy.batch_max", "", "samples", most_, 0, 1'000'000,
                  "no machine gets more; 0: eight times the job's batch");
    return settings;
  }
  // with the sum of gradients
  State state() const override { return {Reference::optimizer_floats() + floats(), 0}; }

 protected:
  void begin_rounds() override {
    batches_.assign(nodes(), job().batch);
    fits_.resize(nodes());
    sum_.assign(floats(), 0.0f);
    rate_ = learning_rate();
    if (!take(total())) return;
    for (std::size_t w = 0; w < nodes(); ++w) work(w, batches_[w]);
  }

  void take_in(const Landing&) override {}

  void landed(Gradient gradient) override {
    trained(gradient, 0);
    fits_[gradient.worker].observe(gradient.batch, seconds(gradient.took));
    const float weight = static_cast<float>(gradient.batch) / static_cast<float>(total());
    for (std::size_t p = 0; p < floats(); ++p) sum_[p] += weight * gradient.values[p];
    if (++landed_ < nodes()) return;
    landed_ = 0;
    descend(Momentum::shared, 0, rate_, sum_);
    sum_.assign(floats(), 0.0f);
    updated();
    resize();
    rate_ = learning_rate();
    if (!take(total())) return;
    for (std::size_t w = 0; w < nodes(); ++w) pull(w, [this, w] { work(w, batches_[w]); });
  }

 private:
  [[nodiscard]] std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const std::uint32_t batch : batches_) sum += batch;
    return sum;
  }

  void resize() {
    const std::uint32_t most = most_ > 0 ? most_ : 8 * job().batch;
    const auto wanted =
        balanced_batches(fits_, nodes() * std::uint64_t{job().batch}, std::min(least_, most), most);
    for (std::size_t w = 0; w < nodes(); ++w) {
      const double change = std::abs(static_cast<double>(wanted[w]) - batches_[w]) / batches_[w];
      if (change <= dead_band_) continue;
      batches_ = wanted;
      return;
    }
  }

  double dead_band_ = 0.1;
  std::uint32_t least_ = 4, most_ = 0;
  std::vector<std::uint32_t> batches_;
  std::vector<StepTimeFit> fits_;
  Vector sum_;
  std::size_t landed_ = 0;
  double rate_ = 0;  // of the round, by the schedule at its start
};

}  // namespace

std::unique_ptr<Strategy> make_dbs_sgd() { return std::make_unique<DbsSgd>(); }

}  // namespace gossipd::lab
