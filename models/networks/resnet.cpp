// Residual networks: He et al., Deep Residual Learning for Image Recognition, 2015.
#include "models/networks/families.h"

namespace gossipd {

namespace {

using torch::Tensor;

torch::nn::Conv2d convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

// A convolution and its batch norm.
class ConvNorm : public torch::nn::Module {
 public:
  ConvNorm(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel, std::int64_t stride)
      : conv_(register_module("conv", convolution(inputs, outputs, kernel, stride))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(outputs))) {}
  Tensor forward(const Tensor& x) { return norm_->forward(conv_->forward(x)); }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
};

struct BlockShape {
  std::int64_t inputs;
  std::int64_t width;
  std::int64_t stride;  // of the first 3 × 3 convolution
  bool bottleneck;
  [[nodiscard]] std::int64_t outputs() const { return bottleneck ? 4 * width : width; }
};

// Two convolutions of 3 × 3, or 1 × 1, 3 × 3, 1 × 1; added to the input, which is projected where
// its shape changes.
class Block : public torch::nn::Module {
 public:
  explicit Block(const BlockShape& shape) {
    if (shape.bottleneck) {
      add(shape.inputs, shape.width, 1, 1);
      add(shape.width, shape.width, 3, shape.stride);
      add(shape.width, shape.outputs(), 1, 1);
    } else {
      add(shape.inputs, shape.width, 3, shape.stride);
      add(shape.width, shape.width, 3, 1);
    }
    if (shape.stride != 1 || shape.inputs != shape.outputs())
      shortcut_ = register_module(
          "shortcut", std::make_shared<ConvNorm>(shape.inputs, shape.outputs(), 1, shape.stride));
  }
  // [batch, inputs, rows, columns] → [batch, outputs, rows / stride, columns / stride]
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      y = parts_[i]->forward(y);
      if (i + 1 < parts_.size()) y = torch::relu(y);
    }
    return torch::relu(y + (shortcut_ ? shortcut_->forward(x) : x));
  }

 private:
  void add(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel, std::int64_t stride) {
    parts_.push_back(register_module("part" + std::to_string(parts_.size() + 1),
                                     std::make_shared<ConvNorm>(inputs, outputs, kernel, stride)));
  }
  std::vector<std::shared_ptr<ConvNorm>> parts_;
  std::shared_ptr<ConvNorm> shortcut_;
};

struct ResnetShape {
  // of the first stage; each stage has twice that of the one before
  std::int64_t width;
  std::vector<std::int64_t> blocks;  // of each stage
  bool bottleneck = false;
  bool large_images = true;  // the stem shrinks both extents by four
};

ResnetShape shape_of(ModelSpec::Kind kind) {
  if (kind == ModelSpec::Kind::resnet20) return {16, {3, 3, 3}, false, false};
  if (kind == ModelSpec::Kind::resnet18) return {64, {2, 2, 2, 2}, false, true};
  GOSSIPD_ASSERT(kind == ModelSpec::Kind::resnet50);
  return {64, {3, 4, 6, 3}, true, true};
}

class Resnet : public Network {
 public:
  Resnet(const ResnetShape& shape, const NetworkPorts& ports) : large_images_(shape.large_images) {
    const std::int64_t kernel = shape.large_images ? 7 : 3;
    stem_ = register_module("stem", std::make_shared<ConvNorm>(ports.input[0], shape.width, kernel,
                                                               shape.large_images ? 2 : 1));
    std::int64_t channels = shape.width;
    for (std::size_t stage = 0; stage < shape.blocks.size(); ++stage) {
      const std::int64_t width = shape.width << stage;
      for (std::int64_t i = 0; i < shape.blocks[stage]; ++i) {
        const BlockShape block{channels, width, stage > 0 && i == 0 ? 2 : 1, shape.bottleneck};
        blocks_.push_back(
            register_module("stage" + std::to_string(stage + 1) + "_block" + std::to_string(i + 1),
                            std::make_shared<Block>(block)));
        channels = block.outputs();
      }
    }
    head_ = register_module("head", torch::nn::Linear(channels, ports.outputs));
  }
  Tensor forward(Tensor images) override {
    // Convolutions and pooling work on channels last without copies in between.
    Tensor x = torch::relu(stem_->forward(images.contiguous(at::MemoryFormat::ChannelsLast)));
    if (large_images_) x = torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
    for (const auto& block : blocks_) x = block->forward(x);
    return head_->forward(x.mean({2, 3}));  // [batch, channels] → [batch, outputs]
  }

 private:
  const bool large_images_;
  std::shared_ptr<ConvNorm> stem_;
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Network> make_resnet(const ModelSpec& model, const NetworkPorts& ports) {
  return std::make_shared<Resnet>(shape_of(model.kind), ports);
}

}  // namespace gossipd
