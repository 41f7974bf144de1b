#include "models/descent/optimizer.h"

#include <cmath>

namespace gossipd {

namespace {

template <bool nesterov>
void sgd(float decay, float momentum, float rate, std::size_t size, float* __restrict x,
         float* __restrict v, float* __restrict g) {
  for (std::size_t i = 0; i < size; ++i) {
    const float gradient = g[i] + decay * x[i];
    const float velocity = momentum * v[i] + gradient;
    v[i] = velocity;
    x[i] -= rate * (nesterov ? gradient + momentum * velocity : velocity);
    g[i] = 0.0f;
  }
}

void plain_sgd(float decay, float rate, std::size_t size, float* __restrict x,
               float* __restrict g) {
  for (std::size_t i = 0; i < size; ++i) {
    x[i] -= rate * (g[i] + decay * x[i]);
    g[i] = 0.0f;
  }
}

struct AdamwFactors {
  float kept;           // of x: 1 − learning_rate·weight_decay
  float beta1, fresh1;  // fresh = 1 − beta, rounded once
  float beta2, fresh2;
  float rate;             // learning_rate / (1 − β1^t)
  float root_correction;  // √(1 − β2^t)
  float epsilon;
};

AdamwFactors adamw_factors(const OptimizerSpec& optimizer, double learning_rate, Step step) {
  const BiasCorrection correction = bias_correction(optimizer, step);
  const auto rounded = [](double value) { return static_cast<float>(value); };
  return {.kept = rounded(1 - learning_rate * optimizer.weight_decay),
          .beta1 = rounded(optimizer.beta1),
          .fresh1 = rounded(1 - optimizer.beta1),
          .beta2 = rounded(optimizer.beta2),
          .fresh2 = rounded(1 - optimizer.beta2),
          .rate = rounded(learning_rate / correction.momentum),
          .root_correction = rounded(std::sqrt(correction.variance)),
          .epsilon = rounded(optimizer.epsilon)};
}

void adamw(const AdamwFactors f, std::size_t size, float* __restrict x, float* __restrict m,
           float* __restrict v, float* __restrict g) {
  for (std::size_t i = 0; i < size; ++i) {
    const float mean = f.beta1 * m[i] + f.fresh1 * g[i];
    const float variance = f.beta2 * v[i] + f.fresh2 * g[i] * g[i];
    m[i] = mean;
    v[i] = variance;
    x[i] = f.kept * x[i] - f.rate * mean / (std::sqrt(variance) / f.root_correction + f.epsilon);
    g[i] = 0.0f;
  }
}

}  // namespace

std::size_t optimizer_vectors(const OptimizerSpec& optimizer) {
  if (optimizer.kind == OptimizerSpec::Kind::adamw) return 2;
  return optimizer.momentum > 0 ? 1 : 0;
}

bool fits(const OptimizerState& state, const OptimizerSpec& optimizer, std::size_t floats) {
  if (state.momentum.empty() && state.variance.empty()) return true;
  return state.momentum.size() == floats &&
         state.variance.size() == (optimizer_vectors(optimizer) > 1 ? floats : 0);
}

BiasCorrection bias_correction(const OptimizerSpec& optimizer, Step step) {
  const auto t = static_cast<double>(step);
  return {1 - std::pow(optimizer.beta1, t), 1 - std::pow(optimizer.beta2, t)};
}

void optimizer_step(const OptimizerSpec& optimizer, double learning_rate, Step step,
                    const Descent& d) {
  const std::size_t size = d.x.size(), vectors = optimizer_vectors(optimizer);
  GOSSIPD_ASSERT(d.gradient.size() == size && d.momentum.size() == (vectors > 0 ? size : 0) &&
                 d.variance.size() == (vectors > 1 ? size : 0));
  GOSSIPD_ASSERT(step > 0);
  if (optimizer.kind == OptimizerSpec::Kind::adamw)
    return adamw(adamw_factors(optimizer, learning_rate, step), size, d.x.data(), d.momentum.data(),
                 d.variance.data(), d.gradient.data());
  if (vectors == 0)
    return plain_sgd(static_cast<float>(optimizer.weight_decay), static_cast<float>(learning_rate),
                     size, d.x.data(), d.gradient.data());
  const auto kernel = optimizer.nesterov ? sgd<true> : sgd<false>;
  kernel(static_cast<float>(optimizer.weight_decay), static_cast<float>(optimizer.momentum),
         static_cast<float>(learning_rate), size, d.x.data(), d.momentum.data(), d.gradient.data());
}

void optimizer_step(const OptimizerSpec& optimizer, double learning_rate, std::span<float> x,
                    OptimizerState& state, std::span<float> gradient) {
  const std::size_t vectors = optimizer_vectors(optimizer);
  state.momentum.resize(vectors > 0 ? x.size() : 0);
  state.variance.resize(vectors > 1 ? x.size() : 0);
  ++state.steps;
  optimizer_step(optimizer, learning_rate, state.steps,
                 {x, state.momentum, state.variance, gradient});
}

}  // namespace gossipd
