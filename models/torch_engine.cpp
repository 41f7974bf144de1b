// The engine of models/torch_engine.h, and Trainer::create on top of it.
#include <algorithm>
#include <cmath>

#include "models/network.h"
#include "models/optimizer.h"
#include "models/runtime.h"
#include "models/torch_engine.h"
#include "models/trainer.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr std::int64_t evaluation_batch = 250;

Result<torch::Device> find_device(const std::string& wanted) {
  const int devices = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
  if (wanted == "cpu" || (wanted == "auto" && devices == 0)) return torch::Device(torch::kCPU);
  int index = 0;
  if (wanted.starts_with("cuda:")) {
    const std::string digits = wanted.substr(5);
    if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos) index = -1;
    else index = std::stoi(digits);
  } else if (wanted != "cuda" && wanted != "auto") {
    index = -1;
  }
  if (index < 0) return Error{"bad-config", "device '" + wanted + "' is not known; choose auto, cpu, cuda or cuda:N"};
  if (devices == 0)
    return Error{"no-device", "device '" + wanted + "': LibTorch sees no CUDA device; check nvidia-smi and that gossipd was built " +
                                  "with a LibTorch for CUDA, or set device = \"cpu\""};
  if (index >= devices)
    return Error{"no-device", "device '" + wanted + "': there are " + std::to_string(devices) + " CUDA devices, the last is cuda:" +
                                  std::to_string(devices - 1)};
  return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(index));
}

class TorchEngine : public GradientEngine {
 public:
  TorchEngine(const Job& job, int threads, torch::Device device, BatchSource source, SampleSet test)
      : job_(job),
        threads_(threads),
        device_(device),
        source_(std::move(source)),
        test_(std::move(test)),
        network_(make_network(job.model, job.data, job.seed)),
        flat_(*network_, device),
        evaluated_network_(make_network(job.model, job.data, job.seed)),
        evaluated_(*evaluated_network_, device) {
    momentum_ = torch::zeros_like(flat_.trained());
    if (optimizer_vectors(job.optimizer) > 1) variance_ = torch::zeros_like(flat_.trained());
    evaluated_network_->eval();
  }

  const Schema& schema() const override { return flat_.schema(); }
  std::string device() const override { return device_.str(); }
  Samples shard_samples() const override { return source_.shard_samples(); }
  void prepare_thread(int nice) override { prepare_training_thread(threads_, nice); }

  double step(Samples position, double learning_rate, std::uint32_t batch) override {
    const double loss = backward(position, batch > 0 ? batch : job_.batch);
    descend(learning_rate);
    return loss;
  }

  double gradient(std::span<const float> model, Samples position, std::uint32_t batch, std::span<float> out) override {
    flat_.copy_from(model);
    const double loss = backward(position, batch);
    std::ranges::fill(out, 0.0f);
    host_view(out).copy_(flat_.gradient());
    const torch::NoGradGuard no_gradient;
    flat_.gradient().zero_();
    return loss;
  }

  void copy_model(std::span<float> out) override { flat_.copy_to(out); }
  void add_to_model(std::span<const float> values) override { flat_.add(values); }
  void replace_model(std::span<const float> values) override { flat_.copy_from(values); }

  OptimizerState optimizer_state() override {
    const auto to_host = [this](const Tensor& values) {
      std::vector<float> out(schema().floats());
      host_view(out).copy_(values);
      return out;
    };
    return {to_host(momentum_), variance_.defined() ? to_host(variance_) : std::vector<float>{}, optimizer_steps_};
  }
  void restore_optimizer(const OptimizerState& state) override {
    GOSSIPD_ASSERT(fits(state, job_.optimizer, schema().floats()));
    const auto from_host = [this](const std::vector<float>& values, Tensor& out) {
      if (values.empty())
        out.zero_();
      else
        out.copy_(host_view({const_cast<float*>(values.data()), values.size()}));
    };
    from_host(state.momentum, momentum_);
    if (variance_.defined()) from_host(state.variance, variance_);
    optimizer_steps_ = state.steps;
  }

  std::optional<Figures> evaluate(std::span<const float> model, const std::atomic<bool>& cancel) override {
    if (test_.count == 0) return std::nullopt;
    const torch::NoGradGuard no_gradient;
    evaluated_.copy_from(model);
    const auto table = normalisation(job_.data);
    double loss = 0;
    std::int64_t right = 0;
    const auto count = static_cast<std::int64_t>(test_.count);
    for (std::int64_t at = 0; at < count; at += evaluation_batch) {
      if (cancel.load()) return std::nullopt;
      const std::int64_t size = std::min(evaluation_batch, count - at);
      Tensor images = torch::empty(batch_shape(size), torch::kFloat32);
      const std::uint8_t* pixels = test_.images.data() + static_cast<std::size_t>(at) * test_.sample_bytes;
      std::ranges::transform(std::span(pixels, static_cast<std::size_t>(images.numel())), images.data_ptr<float>(),
                             [&](std::uint8_t pixel) { return table[pixel]; });
      Tensor labels = torch::empty({size}, torch::kInt64);
      std::copy_n(test_.labels.begin() + at, size, labels.data_ptr<std::int64_t>());
      labels = labels.to(device_);
      const Tensor logits = evaluated_network_->forward(images.to(device_));
      loss += torch::nn::functional::cross_entropy(logits, labels).item<double>() * static_cast<double>(size);
      right += logits.argmax(1).eq(labels).sum().item<std::int64_t>();
    }
    return Figures{static_cast<double>(right) / static_cast<double>(count), loss / static_cast<double>(count)};
  }

 private:
  std::vector<std::int64_t> batch_shape(std::int64_t batch) const {
    return {batch, job_.data.shape[0], job_.data.shape[1], job_.data.shape[2]};
  }

  // Adds the gradient of the batch's mean loss to flat_.gradient(); returns the loss.
  double backward(Samples position, std::uint32_t batch) {
    if (!images_.defined() || images_.size(0) != static_cast<std::int64_t>(batch)) {
      images_ = torch::empty(batch_shape(batch), torch::kFloat32);
      labels_ = torch::empty({static_cast<std::int64_t>(batch)}, torch::kInt64);
    }
    source_.fill(position, floats_of(images_), {labels_.data_ptr<std::int64_t>(), static_cast<std::size_t>(labels_.numel())});
    const Tensor logits = network_->forward(images_.to(device_));
    const Tensor loss = torch::nn::functional::cross_entropy(logits, labels_.to(device_));
    loss.backward();
    return loss.item<double>();
  }

  // The part of a host vector of P floats that is trained.
  Tensor host_view(std::span<float> host) const { return torch::from_blob(host.data(), {momentum_.numel()}, torch::kFloat32); }
  static std::span<float> floats_of(Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())}; }

  // Same formula twice: one pass over host memory, or library kernels on a device.
  void descend(double learning_rate) {
    ++optimizer_steps_;
    if (device_.is_cpu()) {
      const std::span<float> variance = variance_.defined() ? floats_of(variance_) : std::span<float>{};
      optimizer_step(job_.optimizer, learning_rate, optimizer_steps_,
                     {floats_of(flat_.trained()), floats_of(momentum_), variance, floats_of(flat_.gradient())});
      return;
    }
    const torch::NoGradGuard no_gradient;
    if (job_.optimizer.kind == OptimizerSpec::Kind::adamw)
      adamw_on_device(learning_rate);
    else
      sgd_on_device(learning_rate);
    flat_.gradient().zero_();
  }

  void sgd_on_device(double learning_rate) {
    const OptimizerSpec& optimizer = job_.optimizer;
    Tensor& x = flat_.trained();
    Tensor& g = flat_.gradient();
    g.add_(x, optimizer.weight_decay);
    momentum_.mul_(optimizer.momentum).add_(g);
    if (optimizer.nesterov)
      x.sub_(g.add_(momentum_, optimizer.momentum), learning_rate);
    else
      x.sub_(momentum_, learning_rate);
  }

  void adamw_on_device(double learning_rate) {
    const OptimizerSpec& optimizer = job_.optimizer;
    const BiasCorrection correction = bias_correction(optimizer, optimizer_steps_);
    const Tensor& g = flat_.gradient();
    momentum_.mul_(optimizer.beta1).add_(g, 1 - optimizer.beta1);
    variance_.mul_(optimizer.beta2).addcmul_(g, g, 1 - optimizer.beta2);
    const Tensor scale = variance_.sqrt().div_(std::sqrt(correction.variance)).add_(optimizer.epsilon);
    flat_.trained().mul_(1 - learning_rate * optimizer.weight_decay).addcdiv_(momentum_, scale, -learning_rate / correction.momentum);
  }

  const Job job_;
  const int threads_;
  const torch::Device device_;
  BatchSource source_;
  const SampleSet test_;
  std::shared_ptr<Network> network_;
  FlatModel flat_;
  std::shared_ptr<Network> evaluated_network_;  // the evaluation thread's own
  FlatModel evaluated_;
  Tensor momentum_;
  Tensor variance_;  // AdamW's alone
  Step optimizer_steps_ = 0;
  Tensor images_;
  Tensor labels_;
};

}  // namespace

Result<std::unique_ptr<GradientEngine>> make_torch_engine(const Job& job, const std::string& device, int threads, BatchSource source,
                                                          SampleSet test) {
  auto found = find_device(device);
  if (!found) return found.error();
  try {
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
    return std::unique_ptr<GradientEngine>(new TorchEngine(job, threads, *found, std::move(source), std::move(test)));
  } catch (const std::exception& error) {
    return Error{"no-device", "the model could not be built on " + found->str() + ": " + error.what()};
  }
}

Result<std::unique_ptr<Trainer>> Trainer::create(const Job& job, const TrainerOptions& options) {
  if (options.shard_count == 0 || options.shard_index >= options.shard_count)
    return Error{"bad-config", "shard " + std::to_string(options.shard_index) + " of " + std::to_string(options.shard_count) +
                                   " does not exist; shards count from 0"};
  auto train = load_samples(job.data, SamplePart::train, options.data_dir);
  if (!train) return train.error();
  if (train->count < options.shard_count)
    return Error{"bad-config", "there are " + std::to_string(options.shard_count) + " shards but only " + std::to_string(train->count) +
                                   " training samples; use fewer shards"};
  SampleSet test;
  if (options.evaluate) {
    auto loaded = load_samples(job.data, SamplePart::test, options.data_dir);
    if (!loaded) return loaded.error();
    test = std::move(*loaded);
  }
  BatchSource source(job.data, *train, DataOrder(job.seed, train->count, {options.shard_index, options.shard_count}));
  auto engine = make_torch_engine(job, options.device, options.threads, std::move(source), std::move(test));
  if (!engine) return engine.error();
  return with_engine(job, options, std::move(*engine));
}

}  // namespace gossipd
