// tools/lab/references/dbs_sgd.cpp - DBS-SGD: a parameter server whose faster machines get larger
// batches, so that all gradients take equally long.
//
//   b_i such that a_i + c_i·b_i is the same for all i, Σ b_i = N·batch
//   x: the job's optimiser on b_i/batch·g_i as it comes; with a barrier on Σ b_i·g_i / Σ b_i
//
// Ji et al., "Dynamic Batch Size" for distributed SGD with a parameter server (2019), a variant of
// asynchronous SGD; known to us from the abstract: b_i ∝ speed is certain, a gradient's weight,
// fitting t(b) = a + c·b on line, its dead band (new sizes only when one of them would move by
// more) and bounds are ours. The speed is that of the computing alone. Everybody begins with the
// job's batch, until all have been measured.
#include <algorithm>
#include <cmath>

#include "tools/lab/references/batch_sizing.h"
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class DbsSgd : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    add_momentum(table, momentum_);
    table.boolean("strategy.barrier", "", barrier_,
                  "all wait for the slowest, and the server takes the mean of their gradients");
    table.number("strategy.dead_band", "", "", dead_band_, 0, 10,
                 "batches change only when one of them would by more than this share");
    table.integer("strategy.batch_min", "", "samples", least_, 1, 1'000'000,
                  "no machine gets less");
    table.integer("strategy.batch_max", "", "samples", most_, 0, 1'000'000,
                  "no machine gets more; 0: eight times the job's batch");
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    if (barrier_ && momentum_ == Momentum::per_worker)
      return "strategy.barrier takes one mean of all gradients, so momentum is shared or none";
    return mistake_of(momentum_, job);
  }
  // with the sum of gradients behind a barrier
  State state() const override {
    return {optimizer_floats(momentum_) + (barrier_ ? floats() : 0), 0};
  }

 protected:
  void begin_rounds() override {
    batches_.assign(nodes(), job().batch);
    fits_.resize(nodes());
    sum_.assign(floats(), 0.0f);
    rate_ = learning_rate();
    if (barrier_ && !take(total())) return;
    for (std::size_t w = 0; w < nodes(); ++w)
      if (barrier_ || take(batches_[w])) work(w, batches_[w]);
  }

  void take_in(const Landing&) override {}

  void landed(Gradient gradient) override {
    const double rate = learning_rate();  // before the schedule moves on by this gradient
    trained(gradient, barrier_ ? 0 : age(gradient.worker));
    fits_[gradient.worker].observe(gradient.batch, seconds(gradient.took));
    barrier_ ? join(gradient) : apply(gradient, rate);
  }

 private:
  void apply(Gradient& gradient, double rate) {
    const float weight = static_cast<float>(gradient.batch) / static_cast<float>(job().batch);
    clip_to_norm(gradient.values, job().training.clip_norm);
    for (float& value : gradient.values) value *= weight;
    const std::size_t worker = gradient.worker;
    descend(momentum_, worker, rate, gradient.values);
    keep_statistics(gradient);
    updated();
    const auto is_measured = [](const StepTimeFit& fit) { return fit.per_sample_s() > 0; };
    if (std::ranges::all_of(fits_, is_measured)) resize();
    if (exhausted()) return;
    pull(worker, [this, worker] {
      if (take(batches_[worker])) work(worker, batches_[worker]);
    });
  }

  void join(const Gradient& gradient) {
    const float weight = static_cast<float>(gradient.batch) / static_cast<float>(total());
    for (std::size_t p = 0; p < floats(); ++p) sum_[p] += weight * gradient.values[p];
    if (++landed_ < nodes()) return;
    landed_ = 0;
    clip_to_norm(sum_, job().training.clip_norm);
    descend(momentum_, 0, rate_, sum_);
    keep_statistics(gradient);
    sum_.assign(floats(), 0.0f);
    updated();
    resize();
    rate_ = learning_rate();
    if (!take(total())) return;
    for (std::size_t w = 0; w < nodes(); ++w) pull(w, [this, w] { work(w, batches_[w]); });
  }

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

  bool barrier_ = false;
  Momentum momentum_ = Momentum::shared;
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
