#include "models/descent/device_descent.h"

#include <torch/version.h>

#include <cmath>

namespace gossipd {

namespace {

using torch::Tensor;

[[maybe_unused]] constexpr std::int64_t piece_floats_max = std::int64_t{1} << 28;

// LibTorch's fused kernels take lists. Pieces of one vector keep their 32-bit indices small.
[[maybe_unused]] std::vector<Tensor> pieces_of(const Tensor& values) {
  std::vector<Tensor> out;
  for (std::int64_t at = 0; at < values.numel(); at += piece_floats_max)
    out.push_back(values.narrow(0, at, std::min(piece_floats_max, values.numel() - at)));
  return out;
}

constexpr bool at_least(int major, int minor) {
  return TORCH_VERSION_MAJOR > major ||
         (TORCH_VERSION_MAJOR == major && TORCH_VERSION_MINOR >= minor);
}

// The fused kernels came to CUDA with 2.0 (AdamW) and 2.3 (SGD), to the CPU with 2.4.
[[maybe_unused]] bool is_fused(const Tensor& x, bool adamw) {
  return x.is_cuda() ? at_least(2, adamw ? 0 : 3) : x.is_cpu() && at_least(2, 4);
}

void sgd_unfused(const OptimizerSpec& optimizer, double learning_rate, const DeviceDescent& d) {
  Tensor g = d.gradient, m = d.momentum, x = d.x;
  if (optimizer.weight_decay != 0) g.add_(x, optimizer.weight_decay);
  if (!m.defined()) {
    x.sub_(g, learning_rate);
    return;
  }
  m.mul_(optimizer.momentum).add_(g);
  if (optimizer.nesterov)
    x.sub_(g.add_(m, optimizer.momentum), learning_rate);
  else
    x.sub_(m, learning_rate);
}

void sgd(const OptimizerSpec& optimizer, double learning_rate, const DeviceDescent& d) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  if (d.momentum.defined() && is_fused(d.x, /*adamw=*/false))
    return at::_fused_sgd_(pieces_of(d.x), pieces_of(d.gradient), pieces_of(d.momentum),
                           optimizer.weight_decay, optimizer.momentum, learning_rate,
                           /*dampening=*/0, optimizer.nesterov, /*maximize=*/false,
                           /*is_first_step=*/false);
#endif
  sgd_unfused(optimizer, learning_rate, d);
}

void adamw_unfused(const OptimizerSpec& optimizer, double learning_rate, Step step,
                   const DeviceDescent& d) {
  const BiasCorrection correction = bias_correction(optimizer, step);
  Tensor m = d.momentum, v = d.variance, x = d.x;
  m.mul_(optimizer.beta1).add_(d.gradient, 1 - optimizer.beta1);
  v.mul_(optimizer.beta2).addcmul_(d.gradient, d.gradient, 1 - optimizer.beta2);
  const Tensor scale = v.sqrt().div_(std::sqrt(correction.variance)).add_(optimizer.epsilon);
  x.mul_(1 - learning_rate * optimizer.weight_decay)
      .addcdiv_(m, scale, -learning_rate / correction.momentum);
}

void adamw(const OptimizerSpec& optimizer, double learning_rate, Step step,
           const DeviceDescent& d) {
#if TORCH_VERSION_MAJOR >= 2
  if (is_fused(d.x, /*adamw=*/true)) {
    const std::vector<Tensor> x = pieces_of(d.x);
    // Filled on the device: no copy to wait for.
    const std::vector<Tensor> steps(
        x.size(), torch::full({}, static_cast<double>(step), d.x.options().requires_grad(false)));
    return at::_fused_adamw_(x, pieces_of(d.gradient), pieces_of(d.momentum), pieces_of(d.variance),
                             /*max_exp_avg_sqs=*/{}, steps, learning_rate, optimizer.beta1,
                             optimizer.beta2, optimizer.weight_decay, optimizer.epsilon,
                             /*amsgrad=*/false, /*maximize=*/false);
  }
#endif
  adamw_unfused(optimizer, learning_rate, step, d);
}

}  // namespace

void optimizer_step_on_device(const OptimizerSpec& optimizer, double learning_rate, Step step,
                              const DeviceDescent& d) {
  const torch::NoGradGuard no_gradient;
  if (optimizer.kind == OptimizerSpec::Kind::adamw)
    adamw(optimizer, learning_rate, step, d);
  else
    sgd(optimizer, learning_rate, d);
  Tensor gradient = d.gradient;
  gradient.zero_();
}

}  // namespace gossipd
