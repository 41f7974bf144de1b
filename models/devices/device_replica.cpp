#include "models/devices/device_replica.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/base/large_memory.h"
#include "core/base/random.h"
#include "models/descent/device_descent.h"
#include "models/devices/autocast.h"
#include "models/networks/loss.h"
#include "models/networks/torchscript.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr double clip_epsilon = 1e-6;  // beside the norm that is divided by
constexpr std::int64_t norm_floats = 1 << 16;

std::span<float> floats_of(Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

// In pieces whose squares are added in double: LibTorch adds in float32 on the CPU, and falls short
// by per cents over many millions of values.
double norm_on_cpu(const Tensor& values) {
  if (values.numel() <= norm_floats) return values.norm().item<double>();
  double squares = 0;
  for (const Tensor& piece : values.split(norm_floats)) {
    const double norm = piece.norm().item<double>();
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

// Those that are not trained are exchanged as well; masks are buffers.
void check_finite(const std::string& file, const ModelTensors& tensors) {
  for (const auto& [name, tensor] : tensors.parameters)
    if (!torch::isfinite(tensor).all().item<bool>())
      throw std::invalid_argument(file + ": parameter '" + name +
                                  "' holds NaN or infinity; initialise it before the export, or "
                                  "make a mask a buffer (register_buffer)");
}

}  // namespace

std::shared_ptr<Network> build_network(const Job& job, const std::string& model_file,
                                       torch::Device device) {
  std::shared_ptr<Network> network;
  if (job.model.kind == ModelSpec::Kind::torchscript) {
    network = load_torchscript(model_file, job.loss.kind);
    if (job.start_from.empty()) check_finite(model_file, network->tensors());
  } else {
    network = make_network(job.model, {job.data.shape, outputs_of(job)}, job.seed);
  }
  network->to(device);
  return network;
}

std::int64_t micro_batch(const Job& job, std::int64_t samples) {
  return job.training.micro_batch > 0 ? std::min<std::int64_t>(job.training.micro_batch, samples)
                                      : samples;
}

DeviceReplica::DeviceReplica(const Job& job, const std::string& model_file, torch::Device device)
    : job_(job),
      device_(device),
      network_(build_network(job, model_file, device)),
      flat_(network_->tensors(), FlatModel::Gradient::yes),
      losses_{LateNumber(device), LateNumber(device)} {
  const std::size_t vectors = optimizer_vectors(job.optimizer);
  if (vectors > 0) momentum_ = torch::zeros_like(flat_.trained());
  if (vectors > 1) variance_ = torch::zeros_like(flat_.trained());
  if (job.training.precision == TrainingSpec::Precision::fp16) scale_.emplace();
  if (!device.is_cpu()) staging_.emplace(device);
  network_->train(true);
}

void DeviceReplica::seed_dropout(std::uint64_t visit) const {
  if (job_.model.kind != ModelSpec::Kind::torchscript) return;  // the built-in ones draw nothing
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(visit);
}

void DeviceReplica::backward(const HostBatch& batch, Part part, std::uint64_t visit,
                             std::size_t turn) {
  if (scale_) {
    const torch::NoGradGuard no_gradient;
    flat_.pull_counters();
    statistics_before_ = flat_.untrained().clone();
  }
  if (part.count == 0) return losses_[turn].put(0.0);
  seed_dropout(Random(visit ^ static_cast<std::uint64_t>(part.begin)).next());
  const std::int64_t most = micro_batch(job_, batch.samples());
  double sum = 0;
  Tensor sum_on_device;
  // As equal as can be, and rather one sample too large: batch norm cannot take one that is left.
  const bool may_norm = flat_.untrained().numel() > 0;
  const std::int64_t fewest = may_norm ? std::min<std::int64_t>(most, 2) : 1;
  const std::int64_t pieces =
      std::min((part.count + most - 1) / most, std::max<std::int64_t>(part.count / fewest, 1));
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t first = part.count * i / pieces, end = part.count * (i + 1) / pieces;
    Tensor loss = loss_of_part(batch, {part.begin + first, end - first});
    if (scale_)
      (loss * scale_->value()).backward();
    else
      loss.backward();
    loss = loss.detach();
    if (device_.is_cpu())
      sum += loss.item<double>();
    else
      sum_on_device = sum_on_device.defined() ? sum_on_device + loss.to(torch::kFloat64)
                                              : loss.to(torch::kFloat64);
  }
  if (device_.is_cpu())
    losses_[turn].put(sum);
  else
    losses_[turn].put(sum_on_device.reshape({}));
}

Tensor DeviceReplica::loss_of_part(const HostBatch& batch, Part part) {
  const auto to_device = [&](const Tensor& host) {
    return host.narrow(0, part.begin, part.count).to(device_, /*non_blocking=*/true);
  };
  const Tensor targets = to_device(batch.targets);
  Tensor loss;
  {
    const AutocastScope autocast(job_.training.precision, device_);
    const Tensor outputs = network_->forward(to_device(batch.inputs));
    loss = loss_of(job_.loss.kind, *network_, outputs, targets);
  }
  if (part.count < batch.samples())
    loss = loss * (static_cast<double>(part.count) / static_cast<double>(batch.samples()));
  return loss;
}

// In fp16 the host waits here for the device: whether there is a step to take decides what comes
// next.
bool DeviceReplica::unscale_gradient() {
  if (!scale_) return true;
  const torch::NoGradGuard no_gradient;
  const bool finite = std::isfinite(flat_.gradient().norm().item<double>());
  if (finite) {
    flat_.gradient().mul_(1 / scale_->value());
  } else {
    flat_.gradient().zero_();
    flat_.untrained().copy_(statistics_before_);
    flat_.push_counters();
  }
  const double before = scale_->value();
  scale_->saw(finite);
  may_scale_down_ = !finite && scale_->value() < before;
  return finite;
}

// A norm that is not finite stays what it is: the loss or the model will show it.
void DeviceReplica::clip_gradient() {
  const double most = job_.training.clip_norm;
  if (most <= 0) return;
  const torch::NoGradGuard no_gradient;
  if (device_.is_cpu()) {
    const double value = norm_on_cpu(flat_.gradient());
    if (value > most && std::isfinite(value)) flat_.gradient().mul_(most / (value + clip_epsilon));
    return;
  }
  const Tensor norm = flat_.gradient().norm();
  const Tensor too_long = torch::isfinite(norm).logical_and_(norm > most);
  flat_.gradient().mul_(
      torch::where(too_long, most / (norm + clip_epsilon), torch::ones_like(norm)));
}

// Same formula twice: one pass over host memory, or library kernels on a device.
void DeviceReplica::descend(double learning_rate) {
  clip_gradient();
  ++optimizer_steps_;
  if (!device_.is_cpu())
    return optimizer_step_on_device(job_.optimizer, learning_rate, optimizer_steps_,
                                    {flat_.trained(), momentum_, variance_, flat_.gradient()});
  const auto of = [](Tensor& vector) {
    return vector.defined() ? floats_of(vector) : std::span<float>{};
  };
  optimizer_step(
      job_.optimizer, learning_rate, optimizer_steps_,
      {floats_of(flat_.trained()), of(momentum_), of(variance_), floats_of(flat_.gradient())});
}

void DeviceReplica::forget_gradient() {
  const torch::NoGradGuard no_gradient;
  flat_.gradient().zero_();
}

void DeviceReplica::copy_model(std::span<float> out) {
  if (!staging_) return flat_.copy_to(out);
  const torch::NoGradGuard no_gradient;
  flat_.pull_counters();
  const auto trained = static_cast<std::size_t>(flat_.trained().numel());
  staging_->to_host(flat_.trained(), out.first(trained));
  staging_->to_host(flat_.untrained(), out.subspan(trained));
}

// The part of a host vector of P floats that is trained.
Tensor DeviceReplica::host_view(std::span<float> host) {
  return torch::from_blob(host.data(), {flat_.trained().numel()}, torch::kFloat32);
}

OptimizerState DeviceReplica::optimizer_state() {
  const auto to_host = [this](const Tensor& values) {
    if (!values.defined()) return std::vector<float>{};
    std::vector<float> out = large_zeros(flat_.schema().floats());
    if (staging_)
      staging_->to_host(values, std::span(out).first(static_cast<std::size_t>(values.numel())));
    else
      host_view(out).copy_(values);
    return out;
  };
  return {to_host(momentum_), to_host(variance_), optimizer_steps_, scale_};
}

void DeviceReplica::restore_optimizer(const OptimizerState& state) {
  GOSSIPD_ASSERT(fits(state, job_.optimizer, flat_.schema().floats()));
  const auto from_host = [this](const std::vector<float>& values, Tensor& out) {
    if (values.empty())
      out.zero_();
    else
      out.copy_(host_view({const_cast<float*>(values.data()), values.size()}));
  };
  if (momentum_.defined()) from_host(state.momentum, momentum_);
  if (variance_.defined()) from_host(state.variance, variance_);
  optimizer_steps_ = state.steps;
  if (scale_) scale_ = state.loss_scale.value_or(LossScale{});
}

}  // namespace gossipd
