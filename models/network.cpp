#include "models/network.h"

#include <cmath>
#include <stdexcept>

#include "core/base/random.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr std::int64_t kernel_size = 5;  // of both convolutions, no padding

// He's uniform initialisation for what feeds a rectifier, zero for biases.
void initialise(torch::nn::Module& module, std::uint64_t seed) {
  const torch::NoGradGuard no_gradient;
  Random random(seed);
  for (auto& parameter : module.parameters()) {
    float* values = parameter.data_ptr<float>();
    if (parameter.dim() < 2) {
      std::fill_n(values, parameter.numel(), 0.0f);
      continue;
    }
    const double fan_in = static_cast<double>(parameter.numel() / parameter.size(0));
    const double bound = std::sqrt(6.0 / fan_in);
    for (std::int64_t i = 0; i < parameter.numel(); ++i) values[i] = static_cast<float>(bound * (2 * random.uniform() - 1));
  }
}

// Fully connected layers with rectifiers between them.
class Head : public torch::nn::Module {
 public:
  Head(std::int64_t inputs, const std::vector<std::int64_t>& hidden, std::int64_t classes) {
    for (const std::int64_t width : hidden) add(std::exchange(inputs, width), width);
    add(inputs, classes);
  }
  Tensor forward(Tensor x) {  // [batch, inputs]
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      x = layers_[i]->forward(x);
      if (i + 1 < layers_.size()) x = torch::relu(x);
    }
    return x;
  }

 private:
  void add(std::int64_t inputs, std::int64_t outputs) {
    layers_.push_back(register_module("linear" + std::to_string(layers_.size() + 1), torch::nn::Linear(inputs, outputs)));
  }
  std::vector<torch::nn::Linear> layers_;
};

class Mlp : public Network {
 public:
  Mlp(const ModelSpec& model, const DataSpec& data)
      : head_(register_module("head", std::make_shared<Head>(data.shape[0] * data.shape[1] * data.shape[2], model.hidden, data.classes))) {}
  Tensor forward(Tensor images) override { return head_->forward(images.flatten(1)); }

 private:
  std::shared_ptr<Head> head_;
};

class Cnn : public Network {
 public:
  Cnn(const ModelSpec& model, const DataSpec& data)
      : first_(register_module("conv1", torch::nn::Conv2d(data.shape[0], model.width, kernel_size))),
        second_(register_module("conv2", torch::nn::Conv2d(model.width, 2 * model.width, kernel_size))) {
    const auto left = [](std::int64_t extent) { return ((extent - kernel_size + 1) / 2 - kernel_size + 1) / 2; };
    head_ = register_module("head", std::make_shared<Head>(2 * model.width * left(data.shape[1]) * left(data.shape[2]), model.hidden, data.classes));
  }
  Tensor forward(Tensor images) override {  // for 1 × 28 × 28 and width 16:
    Tensor x = first_->forward(images);     // [batch, 16, 24, 24]
    // With channels last, pooling and the second convolution are a fifth faster on CPUs.
    x = x.contiguous(at::MemoryFormat::ChannelsLast);
    x = torch::relu(torch::max_pool2d(x, 2));                    // [batch, 16, 12, 12]; a rectifier commutes with a maximum
    x = torch::relu(torch::max_pool2d(second_->forward(x), 2));  // [batch, 32, 4, 4]
    return head_->forward(x.flatten(1));                         // [batch, 512] → [batch, classes]
  }

 private:
  torch::nn::Conv2d first_;
  torch::nn::Conv2d second_;
  std::shared_ptr<Head> head_;
};

Tensor host_view(std::span<const float> host) {
  return torch::from_blob(const_cast<float*>(host.data()), {static_cast<std::int64_t>(host.size())}, torch::kFloat32);
}

}  // namespace

std::shared_ptr<Network> make_network(const ModelSpec& model, const DataSpec& data, std::uint64_t seed) {
  std::shared_ptr<Network> network;
  if (model.kind == ModelSpec::Kind::cnn)
    network = std::make_shared<Cnn>(model, data);
  else
    network = std::make_shared<Mlp>(model, data);
  initialise(*network, seed);
  return network;
}

FlatModel::FlatModel(torch::nn::Module& module, torch::Device device) {
  const torch::NoGradGuard no_gradient;
  module.to(device);
  std::vector<Segment> segments;
  std::uint64_t floats = 0;
  const auto add_segment = [&](const std::string& name, const Tensor& tensor, SegmentKind kind) {
    const auto size = static_cast<std::uint64_t>(tensor.numel());
    segments.push_back({name, tensor.sizes().vec(), floats, size, kind});
    floats += size;
  };
  for (const auto& item : module.named_parameters()) {
    if (item.value().scalar_type() != torch::kFloat32)
      throw std::invalid_argument("parameter '" + item.key() + "' is not of 32-bit floats");
    add_segment(item.key(), item.value(), SegmentKind::parameter);
  }
  const auto trained_floats = static_cast<std::int64_t>(floats);
  for (const auto& item : module.named_buffers())
    add_segment(item.key(), item.value(),
                item.value().scalar_type() == torch::kFloat32 ? SegmentKind::statistic : SegmentKind::local);
  auto schema = Schema::build(std::move(segments));
  if (!schema) throw std::invalid_argument(schema.error().text);
  schema_ = std::move(*schema);
  if (trained_floats == 0) throw std::invalid_argument("the module has no parameters");

  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(device);
  values_ = torch::zeros({static_cast<std::int64_t>(floats)}, options);
  trained_ = values_.narrow(0, 0, trained_floats);
  gradient_ = torch::zeros_like(trained_);
  auto segment = schema_.segments().begin();
  const auto view = [&](const Tensor& flat) {
    return flat.narrow(0, static_cast<std::int64_t>(segment->offset), static_cast<std::int64_t>(segment->size)).view(segment->shape);
  };
  for (auto& parameter : module.parameters()) {
    view(values_).copy_(parameter);
    parameter.set_data(view(values_));
    parameter.mutable_grad() = view(gradient_);
    ++segment;
  }
  for (auto& buffer : module.buffers()) {
    if (segment->kind == SegmentKind::statistic) {
      view(values_).copy_(buffer);
      buffer.set_data(view(values_));
    } else {
      counters_.push_back({buffer, segment->offset});
    }
    ++segment;
  }
}

void FlatModel::pull_counters() {
  for (const Counter& counter : counters_)
    values_.narrow(0, static_cast<std::int64_t>(counter.offset), counter.tensor.numel()).copy_(counter.tensor.flatten());
}

void FlatModel::push_counters() {
  for (const Counter& counter : counters_)
    counter.tensor.copy_(values_.narrow(0, static_cast<std::int64_t>(counter.offset), counter.tensor.numel()).view(counter.tensor.sizes()));
}

void FlatModel::copy_to(std::span<float> host) {
  const torch::NoGradGuard no_gradient;
  pull_counters();
  host_view(host).copy_(values_);
}

void FlatModel::copy_from(std::span<const float> host) {
  const torch::NoGradGuard no_gradient;
  values_.copy_(host_view(host));
  push_counters();
}

void FlatModel::add(std::span<const float> host) {
  const torch::NoGradGuard no_gradient;
  pull_counters();
  values_.add_(host_view(host).to(values_.device()));
  push_counters();
}

}  // namespace gossipd
