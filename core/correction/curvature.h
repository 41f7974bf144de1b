// core/correction/curvature.h - damping of the future position by curvature: DC-ASGD for gossip.
//
// DC-ASGD (Zheng et al., ICML 2017) takes the change of the gradient along a displacement Δ as
// λ·g⊙g⊙Δ. Followed along the own drift u (per step) that is dΔ/dn = u − k⊙|u|⊙Δ, whose solution
// after n steps is, with z = k·|n|·|u|,
//
//     Δ(n) = n·u ⊙ (1 − e^(−z)) / z
//
// bounded by 1/k for any age and never of another sign than n·u. k is λ by a scale of the block, so
// that λ has no unit:
//     constant   k = λ / rms(x)            of the block's parameters
//     adaptive   k = λ / √MS,  MS = m·MS + (1 − m)·mean(u²),  m = 0.95 per comparison, one number
//                per block (DC-ASGD-a's normalisation; a typical element then saturates after 1/λ
//                steps)
// Element-wise; the spans of one call have one size. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "core/correction/future_position.h"

namespace gossipd {

enum class CurvatureMode : std::uint8_t { constant, adaptive };  // which scale k has

inline constexpr double curvature_decay = 0.95;
inline constexpr double curvature_epsilon = 1e-12;

// n·u·(1 − e^(−z))/z with z = k·|n·u|.
[[nodiscard]] double damped_displacement(double n_times_u, double k);
// The moving average of mean(u²); the first value is taken as it is.
[[nodiscard]] double adapt_mean_square(double before, double now);

// update += gain·Δ(steps); returns Σ of the squares of what was added.
double add_damped(std::span<float> update, std::span<const float> drift,
                  const FuturePosition& position, double k);

}  // namespace gossipd
