// tools/lab/references/dana.cpp - DANA: every worker is sent the place where the others' momentum
// will carry the model.
//
//   zero:  v_i = β·v_i + g ;  x −= η·v_i ;  reply  x − η·β·Σ_j v_j
//   slim:  on worker i:  v_i = β·v_i + g ;  push  β·v_i + g
//          server:  x −= η·(what was pushed) ;  reply  x
//
// Hakimi, Barkai, Gabel, Schuster, "Taming Momentum in a Distributed Asynchronous Environment"
// (2019). Both walk the same path when η is constant (slim's x is zero's reply; a test holds them
// together); zero needs N momentum vectors and their sum at the server, slim one on each worker.
// Weight decay at the server's model: our reading. Slim's workers keep theirs here, but add the
// decay as the gradient lands, for the same reason.
#include "tools/lab/references/parameter_server.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

namespace {

class Dana : public ParameterServer {
 public:
  std::vector<Setting> settings() override {
    std::vector<Setting> settings = server_settings();
    SettingTable(settings).one_of("strategy.variant", "", variant_, {"zero", "slim"},
                                  "momentum at the server with a look-ahead, or on the workers");
    return settings;
  }
  std::optional<std::string> mistake(const Job& job) const override {
    return sgd_only(job, "dana looks ahead along SGD's momentum");
  }
  State state() const override {
    return variant_ == Variant::zero ? State{(nodes() + 1) * floats(), 0} : State{0, floats()};
  }

 protected:
  void prepare() override {
    velocities_.assign(nodes(), Vector(floats()));
    sum_.assign(floats(), 0.0f);
  }

  void take_in(const Landing& landing) override {
    const float rate = static_cast<float>(landing.learning_rate),
                decay = static_cast<float>(job().optimizer.weight_decay);
    Vector& velocity = velocities_[landing.worker];
    const std::size_t parameters = parameter_floats();
    for (std::size_t p = 0; p < parameters; ++p) {
      const float g = landing.values[p] + decay * model_[p];
      const float next = beta() * velocity[p] + g;
      sum_[p] += next - velocity[p];
      velocity[p] = next;
      model_[p] -= rate * (variant_ == Variant::zero ? next : beta() * next + g);
    }
    updated();
  }

  void reply(std::size_t, double learning_rate, Vector& out) override {
    out = model_;
    if (variant_ == Variant::slim) return;
    const float ahead = static_cast<float>(learning_rate) * beta();
    const std::size_t parameters = parameter_floats();
    for (std::size_t p = 0; p < parameters; ++p) out[p] -= ahead * sum_[p];
  }

 private:
  enum class Variant { zero, slim };
  [[nodiscard]] float beta() const { return static_cast<float>(job().optimizer.momentum); }

  Variant variant_ = Variant::zero;
  std::vector<Vector> velocities_;
  Vector sum_;  // of velocities_
};

}  // namespace

std::unique_ptr<Strategy> make_dana() { return std::make_unique<Dana>(); }

}  // namespace gossipd::lab
