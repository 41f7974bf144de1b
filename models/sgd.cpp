#include "models/sgd.h"

namespace gossipd {

namespace {

template <bool nesterov>
void run(float decay, float momentum, float rate, std::size_t size, float* __restrict x, float* __restrict v, float* __restrict g) {
  for (std::size_t i = 0; i < size; ++i) {
    const float gradient = g[i] + decay * x[i];
    const float velocity = momentum * v[i] + gradient;
    v[i] = velocity;
    x[i] -= rate * (nesterov ? gradient + momentum * velocity : velocity);
    g[i] = 0.0f;
  }
}

}  // namespace

void sgd_step(const OptimizerSpec& optimizer, double learning_rate, std::span<float> x, std::span<float> v, std::span<float> g) {
  GOSSIPD_ASSERT(x.size() == v.size() && x.size() == g.size());
  const auto kernel = optimizer.nesterov ? run<true> : run<false>;
  kernel(static_cast<float>(optimizer.weight_decay), static_cast<float>(optimizer.momentum), static_cast<float>(learning_rate),
         x.size(), x.data(), v.data(), g.data());
}

}  // namespace gossipd
