// tools/lab/references/smega2.cpp - SMEGA2: workers are sent the server's model N updates ahead, in
// memory that does not grow with N.
//
//   on g:  g += wd·x ;  s = (s+1) mod N ;  G += g ;  u = g + β·V ;  if s == 0: V = β·V + G/N, G = 0
//          x −= η·u ;  reply  x − η·β·[ (N + s(β−1))·V + (s/N)·G ]
//
// Cohen, Hakimi, Schuster, "SMEGA2: Distributed Asynchronous Deep Neural Network Training With a
// Single Momentum Buffer" (ICPP 2022); as in the authors' code, also `strategy.naive`: the reply is
// x − η·β·N·V, as if V did not change on the way. `strategy.horizon = lag` is ours:
// each worker's horizon is the number of updates that its own gradients were late (a moving
// average, its own landing included) instead of N.
#include "tools/lab/references/formulas.h"
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class Smega2 : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable table(settings);
    table.one_of("strategy.horizon", "", horizon_, {"workers", "lag"},
                 "how far ahead: N updates, or this worker's own lag");
    table.boolean("strategy.naive", "", naive_,
                  "look ahead along the momentum of now, without its change on the way");
    table.number("strategy.lag_smoothing", "", "", smoothing_, 0, 1,
                 "horizon = lag: weight of the newest lag in the average");
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    return sgd_only(job, "smega2 looks ahead along SGD's momentum");
  }
  // V and G beside the model: 3P with it, whatever N is.
  State state() const override { return {2 * floats(), 0}; }

 protected:
  void prepare() override {
    velocity_.assign(floats(), 0.0f);
    gathered_.assign(floats(), 0.0f);
    lag_.assign(nodes(), static_cast<double>(nodes()));
  }

  void take_in(const Landing& landing) override {
    const float rate = static_cast<float>(landing.learning_rate),
                decay = static_cast<float>(job().optimizer.weight_decay);
    const float n = static_cast<float>(nodes());
    s_ = (s_ + 1) % nodes();
    const std::size_t parameters = parameter_floats();
    for (std::size_t p = 0; p < parameters; ++p) {
      const float g = landing.values[p] + decay * model_[p];
      gathered_[p] += g;
      model_[p] -= rate * (g + beta() * velocity_[p]);
      if (s_ == 0) {
        velocity_[p] = beta() * velocity_[p] + gathered_[p] / n;
        gathered_[p] = 0;
      }
    }
    updated();
    lag_[landing.worker] += smoothing_ * (landing.age + 1 - lag_[landing.worker]);
  }

  void reply(std::size_t worker, double learning_rate, Vector& out) override {
    const double horizon =
        horizon_ == Horizon::workers ? static_cast<double>(nodes()) : lag_[worker];
    const RollOut ahead = naive_ ? RollOut{horizon, 0}
                                 : smega2_roll_out(nodes(), s_, job().optimizer.momentum, horizon);
    const float step = static_cast<float>(learning_rate) * beta();
    const float a = step * static_cast<float>(ahead.velocity),
                b = step * static_cast<float>(ahead.gathered);
    out = model_;
    const std::size_t parameters = parameter_floats();
    for (std::size_t p = 0; p < parameters; ++p) out[p] -= a * velocity_[p] + b * gathered_[p];
  }

 private:
  enum class Horizon { workers, lag };
  [[nodiscard]] float beta() const { return static_cast<float>(job().optimizer.momentum); }

  Horizon horizon_ = Horizon::workers;
  bool naive_ = false;
  double smoothing_ = 0.1;
  Vector velocity_, gathered_;
  std::size_t s_ = 0;        // updates so far modulo N
  std::vector<double> lag_;  // of each worker, in updates
};

}  // namespace

std::unique_ptr<Strategy> make_smega2() { return std::make_unique<Smega2>(); }

}  // namespace gossipd::lab
