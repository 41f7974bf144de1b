// The multilayer perceptron and the small convolutional network.
#include "models/networks/families.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr std::int64_t kernel_size = 5;  // of both convolutions, no padding
// Pixels of an image whose patches, 25 times as many floats, may lie in memory for a step.
constexpr std::int64_t small = 64 * 64;

// Fully connected layers with rectifiers between them.
class Head : public torch::nn::Module {
 public:
  Head(std::int64_t inputs, const std::vector<std::int64_t>& hidden, std::int64_t outputs) {
    for (const std::int64_t width : hidden) add(std::exchange(inputs, width), width);
    add(inputs, outputs);
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
    layers_.push_back(register_module("linear" + std::to_string(layers_.size() + 1),
                                      torch::nn::Linear(inputs, outputs)));
  }
  std::vector<torch::nn::Linear> layers_;
};

class Mlp : public Network {
 public:
  Mlp(const ModelSpec& model, const NetworkPorts& ports) {
    std::int64_t inputs = 1;
    for (const std::int64_t extent : ports.input) inputs *= extent;
    head_ = register_module("head", std::make_shared<Head>(inputs, model.hidden, ports.outputs));
  }
  Tensor forward(Tensor images) override { return head_->forward(images.flatten(1)); }

 private:
  std::shared_ptr<Head> head_;
};

class Cnn : public Network {
 public:
  Cnn(const ModelSpec& model, const NetworkPorts& ports)
      : first_(
            register_module("conv1", torch::nn::Conv2d(ports.input[0], model.width, kernel_size))),
        second_(register_module("conv2",
                                torch::nn::Conv2d(model.width, 2 * model.width, kernel_size))) {
    const auto left = [](std::int64_t extent) {
      return ((extent - kernel_size + 1) / 2 - kernel_size + 1) / 2;
    };
    head_ = register_module("head", std::make_shared<Head>(2 * model.width * left(ports.input[1]) *
                                                               left(ports.input[2]),
                                                           model.hidden, ports.outputs));
  }
  Tensor forward(Tensor images) override {  // for 1 × 28 × 28 and width 16:
    // [batch, 16, 24, 24]. With channels last, pooling and the second convolution are a fifth
    // faster on CPUs.
    const bool grey = images.size(1) == 1 && images.size(2) * images.size(3) <= small;
    Tensor x = grey && images.is_cpu() && torch::GradMode::is_enabled()
                   ? of_grey(images)
                   : first_->forward(images).contiguous(at::MemoryFormat::ChannelsLast);
    // [batch, 16, 12, 12]; a rectifier commutes with a maximum
    x = torch::relu(torch::max_pool2d(x, 2));
    x = torch::relu(torch::max_pool2d(second_->forward(x), 2));  // [batch, 32, 4, 4]
    return head_->forward(x.flatten(1));  // [batch, 512] → [batch, outputs]
  }

 private:
  // The first convolution as one product of matrices, channels last. oneDNN fills up a single
  // channel to eight for the gradient of the weights, so a training step took 1.5 times as long.
  // Without a gradient it gains nothing.
  Tensor of_grey(const Tensor& images) {
    const std::int64_t rows = images.size(2) - kernel_size + 1,
                       columns = images.size(3) - kernel_size + 1;
    const Tensor patches = images.unfold(2, kernel_size, 1)
                               .unfold(3, kernel_size, 1)
                               .permute({1, 4, 5, 0, 2, 3})
                               .reshape({kernel_size * kernel_size, -1});  // [25, batch · 576]
    // No size of the batch is named, so that a trace of it takes any.
    return torch::addmm(first_->bias, patches.t(), first_->weight.flatten(1).t())
        .view({-1, rows, columns, first_->weight.size(0)})
        .permute({0, 3, 1, 2});
  }

  torch::nn::Conv2d first_;
  torch::nn::Conv2d second_;
  std::shared_ptr<Head> head_;
};

}  // namespace

std::shared_ptr<Network> make_mlp(const ModelSpec& model, const NetworkPorts& ports) {
  return std::make_shared<Mlp>(model, ports);
}
std::shared_ptr<Network> make_cnn(const ModelSpec& model, const NetworkPorts& ports) {
  return std::make_shared<Cnn>(model, ports);
}

}  // namespace gossipd
