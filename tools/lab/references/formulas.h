// tools/lab/references/formulas.h - the reference rows' formulas without machines, so that tests
// can compare them with brute force. Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace gossipd::lab {

// ---- SMEGA2: θ̂ = θ − η·β·(velocity·V + gathered·G) is the server's model after `horizon` more
// updates whose gradients are zero. V becomes β·V + G/N, and G zero, whenever the counter s
// (updates so far modulo N) comes back to 0. For horizon = N: velocity = N + s(β − 1), gathered =
// s/N, the formula of the authors' code. Their naive one leaves V as it is: {horizon, 0}.
struct RollOut {
  double velocity = 0;
  double gathered = 0;
};
[[nodiscard]] inline RollOut smega2_roll_out(std::uint64_t workers, std::uint64_t s, double beta,
                                             double horizon) {
  RollOut sum;
  double velocity = 1, gathered = 0;  // V of the current window in terms of V and G now
  double window = static_cast<double>(workers - s), taken_over = 1.0 / static_cast<double>(workers);
  for (double left = horizon; left > 0;) {
    sum.velocity += std::min(left, window) * velocity;
    sum.gathered += std::min(left, window) * gathered;
    left -= window;
    window = static_cast<double>(workers);
    velocity *= beta;
    gathered = beta * gathered + taken_over;
    taken_over = 0;  // G is zero from the first turn on
  }
  return sum;
}

// ---- DC-ASGD: g += λ ⊙ g ⊙ g ⊙ (x − x_then); λ = λ0, or λ0/√(MS + ε) with MS = m·MS + (1 − m)·g ⊙
// g.
inline void delay_compensate(float lambda, std::span<float> g, std::span<const float> x,
                             std::span<const float> x_then) {
  for (std::size_t p = 0; p < g.size(); ++p) g[p] += lambda * g[p] * g[p] * (x[p] - x_then[p]);
}
inline void delay_compensate_adaptive(float lambda0, float m, std::span<float> mean_square,
                                      std::span<float> g, std::span<const float> x,
                                      std::span<const float> x_then) {
  constexpr float epsilon = 1e-7f;
  for (std::size_t p = 0; p < g.size(); ++p) {
    const float square = g[p] * g[p];
    mean_square[p] = m * mean_square[p] + (1 - m) * square;
    g[p] += lambda0 / std::sqrt(mean_square[p] + epsilon) * square * (x[p] - x_then[p]);
  }
}

// ---- DGC: the share of entries that is sent once `progress` (0 … 1) of the warm-up is over.
[[nodiscard]] inline double dgc_share(double share, double progress) {
  constexpr double at_first = 0.25;
  if (share >= at_first) return share;
  return at_first * std::pow(share / at_first, progress);
}

// ---- training.clip_norm: a gradient whose Euclidean norm is above `most` is scaled down to it, as
// torch.nn.utils.clip_grad_norm_ does and the engine of gossipd; 0: never. A norm that is not
// finite leaves it as it is.
inline void clip_to_norm(std::span<float> gradient, double most) {
  constexpr double epsilon = 1e-6;
  if (most <= 0) return;
  double square = 0;
  for (const float g : gradient) square += double{g} * g;
  const double norm = std::sqrt(square);
  if (!(norm > most) || !std::isfinite(norm)) return;
  for (float& g : gradient) g *= static_cast<float>(most / (norm + epsilon));
}

// ---- LARS, for one tensor: g ← λ·(g + decay·x), λ = trust·‖x‖/(‖g‖ + decay·‖x‖), Euclidean
// norms; 1 where either is zero.
inline void lars_scale(double trust, double decay, std::span<const float> x, std::span<float> g) {
  double x_square = 0, g_square = 0;
  for (std::size_t p = 0; p < g.size(); ++p) {
    x_square += double{x[p]} * x[p];
    g_square += double{g[p]} * g[p];
  }
  const double x_norm = std::sqrt(x_square), g_norm = std::sqrt(g_square);
  const double scale = x_norm > 0 && g_norm > 0 ? trust * x_norm / (g_norm + decay * x_norm) : 1.0;
  for (std::size_t p = 0; p < g.size(); ++p)
    g[p] = static_cast<float>(scale * (g[p] + decay * x[p]));
}

// ---- EASGD's elastic: d = α(x_i − x̃); the worker goes back by d, the centre forward by d: their
// sum stays.
inline void elastic_difference(float alpha, std::span<const float> worker,
                               std::span<const float> centre, std::span<float> d) {
  for (std::size_t p = 0; p < d.size(); ++p) d[p] = alpha * (worker[p] - centre[p]);
}

// ---- Quadratic synchronisation rule: H = max(H_base, ⌊(α/η)²⌋).
[[nodiscard]] inline std::uint64_t quadratic_period(std::uint64_t base, double alpha,
                                                    double learning_rate) {
  if (learning_rate <= 0) return std::uint64_t{1} << 32;
  const double ratio = alpha / learning_rate;
  return std::max(base, static_cast<std::uint64_t>(std::min(ratio * ratio, 0x1p32)));
}

// x ← (1 − weight)·x + weight·other: a row of mixing weights that sums to 1.
inline void mix(std::span<float> x, std::span<const float> other, float weight) {
  for (std::size_t p = 0; p < x.size(); ++p) x[p] += weight * (other[p] - x[p]);
}

}  // namespace gossipd::lab
