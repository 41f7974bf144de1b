// Transformers: vit (Dosovitskiy et al. 2020, with the mean of the patches in place of a class
// token) and gpt (Radford et al. 2019).
#include <torch/version.h>

#include <cmath>

#include "models/networks/families.h"

namespace gossipd {

namespace {

using torch::Tensor;

constexpr double initial_deviation = 0.02;  // of weights and embeddings, GPT-2's
constexpr std::int64_t widening = 4;        // of the two layers after the attention

// q, k, v: [batch, heads, tokens, dim / heads]; `causal`: a token sees itself and those before it.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal);
#else
  // [batch, heads, tokens, tokens]
  Tensor scores =
      torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (causal) {
    const std::int64_t tokens = q.size(-2);
    const Tensor later = torch::ones({tokens, tokens}, q.options().dtype(torch::kBool)).triu(1);
    scores = scores.masked_fill(later, -INFINITY);
  }
  return torch::matmul(torch::softmax(scores, -1), v);
#endif
}

class Layer : public torch::nn::Module {
 public:
  Layer(const ModelSpec& model, bool causal)
      : heads_(model.heads),
        causal_(causal),
        norm1_(register_module("norm1",
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({model.dim})))),
        attention_(register_module("attention", torch::nn::Linear(model.dim, 3 * model.dim))),
        projection_(register_module("projection", torch::nn::Linear(model.dim, model.dim))),
        norm2_(register_module("norm2",
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({model.dim})))),
        widen_(register_module("widen", torch::nn::Linear(model.dim, widening * model.dim))),
        narrow_(register_module("narrow", torch::nn::Linear(widening * model.dim, model.dim))) {}

  Tensor forward(const Tensor& x) {  // [batch, tokens, dim]
    const Tensor y = x + mix_tokens(norm1_->forward(x));
    return y + narrow_->forward(torch::gelu(widen_->forward(norm2_->forward(y))));
  }

 private:
  Tensor mix_tokens(const Tensor& x) {
    // No size of the batch is named, so that a trace of it takes any.
    const std::int64_t tokens = x.size(1), dim = x.size(2);
    const auto split = [&](const Tensor& part) {
      return part.view({-1, tokens, heads_, dim / heads_}).transpose(1, 2);
    };
    const std::vector<Tensor> parts = attention_->forward(x).split(dim, 2);
    const Tensor y = attend(split(parts[0]), split(parts[1]), split(parts[2]), causal_);
    return projection_->forward(y.transpose(1, 2).reshape({-1, tokens, dim}));
  }

  const std::int64_t heads_;
  const bool causal_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear attention_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear widen_;
  torch::nn::Linear narrow_;
};

class Transformer : public Network {
 public:
  double initial_bound(const std::string& name, const Tensor& parameter) const override {
    const auto ends = [&](const char* part) {
      return name.ends_with(std::string(part) + ".weight");
    };
    // A uniform distribution's half-width is √3 deviations. What is added to the residual stream
    // 2·depth times is drawn smaller.
    const double residual = ends("projection") || ends("narrow")
                                ? 1 / std::sqrt(2.0 * static_cast<double>(layers_.size()))
                                : 1;
    if (ends("patches")) return Network::initial_bound(name, parameter);
    return std::sqrt(3.0) * initial_deviation * residual;
  }

 protected:
  Transformer(const ModelSpec& model, bool causal) {
    for (std::int64_t i = 0; i < model.depth; ++i)
      layers_.push_back(
          register_module("layer" + std::to_string(i + 1), std::make_shared<Layer>(model, causal)));
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({model.dim})));
  }
  Tensor through_layers(Tensor x) {
    for (const auto& layer : layers_) x = layer->forward(x);
    return norm_->forward(x);
  }

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
  torch::nn::LayerNorm norm_{nullptr};
};

class Vit : public Transformer {
 public:
  Vit(const ModelSpec& model, const NetworkPorts& ports)
      : Transformer(model, /*causal=*/false),
        patches_(register_module(
            "patches",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(ports.input[0], model.dim, model.patch)
                                  .stride(model.patch)))),
        head_(register_module("head", torch::nn::Linear(model.dim, ports.outputs))) {
    const std::int64_t count = (ports.input[1] / model.patch) * (ports.input[2] / model.patch);
    position_ = register_parameter("position", torch::zeros({1, count, model.dim}));
  }
  Tensor forward(Tensor images) override {
    const Tensor x = patches_->forward(images).flatten(2).transpose(1, 2);  // [batch, patches, dim]
    return head_->forward(through_layers(x + position_).mean(1));
  }

 private:
  torch::nn::Conv2d patches_;
  torch::nn::Linear head_;
  Tensor position_;
};

class Gpt : public Transformer {
 public:
  Gpt(const ModelSpec& model, const NetworkPorts& ports)
      : Transformer(model, /*causal=*/true),
        token_(register_parameter("token", torch::zeros({ports.outputs, model.dim}))),
        position_(register_parameter("position", torch::zeros({ports.input[0], model.dim}))) {}
  Tensor forward(Tensor tokens) override {  // [batch, tokens], int64
    const Tensor x = torch::embedding(token_, tokens) + position_.narrow(0, 0, tokens.size(1));
    return torch::linear(through_layers(x), token_);  // [batch, tokens, vocabulary]
  }

 private:
  Tensor token_;  // [vocabulary, dim]
  Tensor position_;
};

}  // namespace

std::shared_ptr<Network> make_vit(const ModelSpec& model, const NetworkPorts& ports) {
  return std::make_shared<Vit>(model, ports);
}
std::shared_ptr<Network> make_gpt(const ModelSpec& model, const NetworkPorts& ports) {
  return std::make_shared<Gpt>(model, ports);
}

}  // namespace gossipd
