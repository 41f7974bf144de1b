// The engine of models/torch_engine.h, and Trainer::create on top of it.
#include "models/torch_engine.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/base/random.h"
#include "models/autocast.h"
#include "models/flat_model.h"
#include "models/loss.h"
#include "models/optimizer.h"
#include "models/runtime.h"
#include "models/torch_device.h"
#include "models/torchscript.h"
#include "models/trainer.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr std::int64_t evaluation_batch = 250;
constexpr std::int64_t trial_batch = 2;
constexpr double clip_epsilon = 1e-6;  // beside the norm that is divided by

// Built-in networks are drawn from the seed, TorchScript models lie in their file.
std::shared_ptr<Network> build_network(const Job& job, const std::string& model_file, torch::Device device) {
  std::shared_ptr<Network> network;
  if (job.model.kind == ModelSpec::Kind::torchscript)
    network = load_torchscript(model_file, job.loss.kind);
  else
    network = make_network(job.model, {job.data.shape, outputs_of(job)}, job.seed);
  network->to(device);
  return network;
}

// The engine's model begins with the weights of a file instead of the seed's.
std::optional<Error> start_with(const std::string& path, Engine& engine) {
  const auto weights = is_zip_file(path) ? read_torchscript_weights(path) : read_weights(path);
  if (!weights) return Error{"bad-weights", weights.error().text + "; start_from names a safetensors or TorchScript file"};
  std::vector<float> model(engine.schema().floats());
  engine.copy_model(model);
  if (auto error = take_weights(*weights, engine.schema(), model)) return error;
  engine.replace_model(model);
  return std::nullopt;
}

std::span<float> floats_of(Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())}; }

// [batch, the sample's shape …], in host memory.
Tensor empty_batch(const SampleShape& sample, std::int64_t batch) {
  std::vector<std::int64_t> shape = sample.shape;
  shape.insert(shape.begin(), batch);
  return torch::empty(shape, sample.element == SampleShape::Element::float32 ? torch::kFloat32 : torch::kInt64);
}

Batch::Values values_of(Tensor& tensor) {
  if (tensor.scalar_type() == torch::kFloat32) return floats_of(tensor);
  return std::span(tensor.data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel()));
}

struct HostBatch {
  HostBatch(const SampleShape& input, const SampleShape& target, std::int64_t samples)
      : inputs(empty_batch(input, samples)), targets(empty_batch(target, samples)) {}
  [[nodiscard]] Batch view() { return {values_of(inputs), values_of(targets)}; }
  Tensor inputs;
  Tensor targets;
};

// Finds out now, in words, what else would end the first step. Throws std::invalid_argument, or what the network throws.
void try_batch(const Job& job, Network& network, const Tensor& inputs, const Tensor& targets) {
  network.train(true);
  const AutocastScope autocast(job.training.precision, inputs.device());
  const Tensor outputs = network.forward(inputs);
  if (const auto reason = fit_error(job.loss.kind, outputs, targets, job.data.classes)) throw std::invalid_argument(*reason);
  const Tensor loss = loss_of(job.loss.kind, network, outputs, targets);
  if (loss.numel() != 1) throw std::invalid_argument("its loss(outputs, targets) returns more than one number; it must return the mean over the batch");
  if (!loss.requires_grad()) throw std::invalid_argument("the loss does not depend on the parameters: does forward detach, or run without gradients?");
}

class TorchEngine : public GradientEngine {
 public:
  TorchEngine(const Job& job, int threads, torch::Device device, BatchSource source, std::shared_ptr<const DataSet> held_out,
              const std::string& model_file)
      : job_(job),
        threads_(threads),
        device_(device),
        source_(std::move(source)),
        held_out_(std::move(held_out)),
        network_(build_network(job, model_file, device)),
        flat_(network_->tensors(), FlatModel::Gradient::yes),
        evaluated_network_(build_network(job, model_file, device)),
        evaluated_(evaluated_network_->tensors(), FlatModel::Gradient::no) {
    momentum_ = torch::zeros_like(flat_.trained());
    if (optimizer_vectors(job.optimizer) > 1) variance_ = torch::zeros_like(flat_.trained());
    network_->train(true);
    try_one_batch();
    evaluated_network_->train(false);
  }

  const Schema& schema() const override { return flat_.schema(); }
  std::string device() const override { return device_.str(); }
  Samples shard_samples() const override { return source_.shard_samples(); }
  void prepare_thread(int nice) override { prepare_training_thread(threads_, nice); }

  double step(Samples position, double learning_rate, std::uint32_t batch) override {
    const double loss = backward(position, batch > 0 ? batch : job_.batch);
    if (job_.training.clip_norm > 0) clip_gradient();
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
    if (!held_out_) return std::nullopt;
    const torch::NoGradGuard no_gradient;
    evaluated_.copy_from(model);
    Score score(job_.loss.kind);
    const auto count = static_cast<std::int64_t>(held_out_->count());
    const std::int64_t most = evaluation_samples();
    for (std::int64_t at = 0; at < count; at += most) {
      if (cancel.load()) return std::nullopt;
      const std::int64_t size = std::min(most, count - at);
      HostBatch batch(held_out_->input(), held_out_->target(), size);
      for (std::int64_t i = 0; i < size; ++i)
        held_out_->write(static_cast<std::size_t>(at + i), nullptr, batch.view(), static_cast<std::size_t>(i));
      const Tensor targets = batch.targets.to(device_);
      const AutocastScope autocast(job_.training.precision, device_);
      const Tensor outputs = evaluated_network_->forward(batch.inputs.to(device_));
      score.add(loss_of(job_.loss.kind, *evaluated_network_, outputs, targets).item<double>(), outputs, targets);
    }
    return score.figures();
  }

 private:
  // As many samples as fit the memory that training needs anyhow, where a sample may be large.
  std::int64_t evaluation_samples() const {
    const bool small = job_.model.kind == ModelSpec::Kind::mlp || job_.model.kind == ModelSpec::Kind::cnn;
    return small ? evaluation_batch : micro_batch(job_.batch);
  }
  std::int64_t micro_batch(std::int64_t batch) const {
    return job_.training.micro_batch > 0 ? std::min<std::int64_t>(job_.training.micro_batch, batch) : batch;
  }

  // On the network for evaluation, which gets its tensors anew each time.
  void try_one_batch() {
    HostBatch batch(source_.set().input(), source_.set().target(), std::min<std::int64_t>(micro_batch(job_.batch), trial_batch));
    source_.fill(0, static_cast<std::size_t>(batch.inputs.size(0)), batch.view());
    seed_dropout(0);
    try_batch(job_, *evaluated_network_, batch.inputs.to(device_), batch.targets.to(device_));
  }

  // A TorchScript model may draw random numbers, for dropout: they are a function of the position, so that a resumed run draws the same.
  void seed_dropout(Samples position) const {
    if (job_.model.kind == ModelSpec::Kind::torchscript) torch::manual_seed(Random(job_.seed ^ (position * 0x9e3779b97f4a7c15ull)).next());
  }

  // Adds the gradient of the batch's mean loss to flat_.gradient(); returns the loss.
  double backward(Samples position, std::uint32_t batch) {
    const std::int64_t size = batch;
    if (!batch_ || batch_->inputs.size(0) != size) batch_.emplace(source_.set().input(), source_.set().target(), size);
    source_.fill(position, batch, batch_->view());
    seed_dropout(position);
    const std::int64_t most = micro_batch(size);
    double sum = 0;
    for (std::int64_t at = 0; at < size; at += most) sum += backward_of(at, std::min(most, size - at), size);
    return sum;
  }

  // The share of samples [at, at + count) in the mean loss of `size`, and in its gradient.
  double backward_of(std::int64_t at, std::int64_t count, std::int64_t size) {
    const Tensor targets = batch_->targets.narrow(0, at, count).to(device_);
    Tensor loss;
    {
      const AutocastScope autocast(job_.training.precision, device_);
      const Tensor outputs = network_->forward(batch_->inputs.narrow(0, at, count).to(device_));
      loss = loss_of(job_.loss.kind, *network_, outputs, targets);
    }
    if (count < size) loss = loss * (static_cast<double>(count) / static_cast<double>(size));
    loss.backward();
    return loss.item<double>();
  }

  void clip_gradient() {
    const torch::NoGradGuard no_gradient;
    const double norm = flat_.gradient().norm().item<double>();
    // A norm that is not finite stays what it is: the loss or the model will show it.
    if (norm > job_.training.clip_norm && std::isfinite(norm)) flat_.gradient().mul_(job_.training.clip_norm / (norm + clip_epsilon));
  }

  // The part of a host vector of P floats that is trained.
  Tensor host_view(std::span<float> host) const { return torch::from_blob(host.data(), {momentum_.numel()}, torch::kFloat32); }

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
  const std::shared_ptr<const DataSet> held_out_;
  std::shared_ptr<Network> network_;
  FlatModel flat_;
  std::shared_ptr<Network> evaluated_network_;  // the evaluation thread's own
  FlatModel evaluated_;
  Tensor momentum_;
  Tensor variance_;  // AdamW's alone
  Step optimizer_steps_ = 0;
  std::optional<HostBatch> batch_;
};

}  // namespace

std::optional<Error> check_torchscript(const Job& job, const std::string& model_file) {
  try {
    const auto network = build_network(job, model_file, torch::kCPU);
    const FlatModel flat(network->tensors(), FlatModel::Gradient::no);
    HostBatch batch(job.data.input(), job.data.target(), trial_batch);
    try_batch(job, *network, batch.inputs.zero_(), batch.targets.zero_());
  } catch (const std::exception& error) {
    const std::string words = sentence_of(error);
    return Error{"bad-model", words.starts_with(model_file) ? words : model_file + ": cannot be trained: " + words};
  }
  return std::nullopt;
}

Result<std::unique_ptr<GradientEngine>> make_torch_engine(const Job& job, const std::string& device, int threads, BatchSource source,
                                                          std::shared_ptr<const DataSet> held_out, const std::string& model_file) {
  auto found = find_device(device);
  if (!found) return found.error();
  try {
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setDeterministicAlgorithms(job.training.deterministic, /*warn_only=*/false);
    return std::unique_ptr<GradientEngine>(
        new TorchEngine(job, threads, *found, std::move(source), std::move(held_out), model_file));
  } catch (const c10::Error& error) {
    return Error{job.model.kind == ModelSpec::Kind::torchscript ? "bad-model" : "no-device",
                 "the model cannot be trained on " + found->str() + ": " + sentence_of(error)};
  } catch (const std::exception& error) {
    return Error{"bad-model", "the model cannot be trained: " + sentence_of(error)};
  }
}

Result<std::unique_ptr<Trainer>> Trainer::create(const Job& job, const TrainerOptions& options) {
  if (options.shard_count == 0 || options.shard_index >= options.shard_count)
    return Error{"bad-config", "shard " + std::to_string(options.shard_index) + " of " + std::to_string(options.shard_count) +
                                   " does not exist; shards count from 0"};
  auto sets = load_data(job.data, {.directory = options.data_dir, .seed = job.seed, .held_out = options.evaluate,
                                   .image_cache_bytes = options.image_cache_bytes});
  if (!sets) return sets.error();
  if (sets->train->count() < options.shard_count)
    return Error{"bad-config", "there are " + std::to_string(options.shard_count) + " shards but only " +
                                   std::to_string(sets->train->count()) + " training samples; use fewer shards"};
  const DataOrder::Shard shard{options.shard_index, options.shard_count, options.walker};
  BatchSource source(sets->train, DataOrder(job.seed, sets->train->count(), shard), options.loader_threads);
  auto engine = make_torch_engine(job, options.device, options.threads, std::move(source), std::move(sets->held_out), options.model_file);
  if (!engine) return engine.error();
  if (!options.start_from.empty())
    if (auto error = start_with(options.start_from, **engine)) return *error;
  return with_engine(job, options, std::move(*engine));
}

}  // namespace gossipd
