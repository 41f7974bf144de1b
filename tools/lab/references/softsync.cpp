// tools/lab/references/softsync.cpp - n-softsync: the server waits for c = max(1, ⌊N/n⌋) gradients,
// then applies their mean.
//
//   mean of g_k·(1/τ_k) over c gradients, τ_k = max(1, age of g_k in updates)
//   then the job's optimiser with rate η
//
// Gupta, Zhang, Wang, "Model Accuracy and Runtime Tradeoff in Distributed Deep Learning" (2016)
// divide η by the mean staleness; Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD" (2016) each
// gradient by its own (the default here). n = 1 waits for as many gradients as there are workers, n
// = N is asynchronous SGD. Workers never wait: they are sent the model as it is. What is left at
// the end, fewer than c gradients, is applied as a mean of those (our reading).
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class Softsync : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    table.integer("strategy.n", "", "", n_, 1, 65536,
                  "updates for every round of all workers; 1: the server waits for N gradients");
    table.one_of("strategy.staleness", "", staleness_, {"per-gradient", "mean", "off"},
                 "divide each gradient by its own age, their mean by the mean age, or nothing");
    add_momentum(table, momentum_);
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    if (staleness_ == Staleness::off) return mistake_of(momentum_, job);
    return sgd_only(job,
                    "softsync divides SGD's rate by way of the gradients, unless "
                    "strategy.staleness is \"off\"");
  }
  State state() const override { return {optimizer_floats(momentum_) + floats(), 0}; }

 protected:
  void prepare() override { sum_.assign(floats(), 0.0f); }

  void take_in(const Landing& landing) override {
    const double staleness = std::max(1.0, landing.age);
    const float factor =
        staleness_ == Staleness::per_gradient ? static_cast<float>(1.0 / staleness) : 1.0f;
    for (std::size_t p = 0; p < floats(); ++p) sum_[p] += factor * landing.values[p];
    staleness_sum_ += staleness;
    if (++count_ == std::max<std::size_t>(1, nodes() / n_)) apply(landing.worker);
  }

  void close() override {
    if (count_ > 0) apply(0);
  }

 private:
  enum class Staleness { per_gradient, mean, off };

  void apply(std::size_t worker) {
    const double divisor =
        staleness_ == Staleness::mean ? staleness_sum_ : static_cast<double>(count_);
    for (float& g : sum_) g /= static_cast<float>(divisor);
    descend(momentum_, worker, learning_rate(), sum_);
    sum_.assign(floats(), 0.0f);
    count_ = 0;
    staleness_sum_ = 0;
    updated();
  }

  std::uint32_t n_ = 1;
  Staleness staleness_ = Staleness::per_gradient;
  Momentum momentum_ = Momentum::shared;
  Vector sum_;
  std::size_t count_ = 0;
  double staleness_sum_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_softsync() { return std::make_unique<Softsync>(); }

}  // namespace gossipd::lab
