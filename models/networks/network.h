// models/networks/network.h - a model as a function of a batch, and the built-in families of
// networks.
//
// Built-in networks are made of LibTorch's layers in models/networks/; a TorchScript file becomes
// one in torchscript.cpp. Only sources of models/ that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "models/job/job.h"

namespace gossipd {

// A model's tensors by the names that schema and checkpoints use.
struct ModelTensors {
  struct Named {
    std::string name;
    torch::Tensor tensor;
  };
  std::vector<Named> parameters;
  std::vector<Named> buffers;
};

// What one sample brings and what the loss wants back.
struct NetworkPorts {
  // {channels, rows, columns}, or {tokens} of a vocabulary of `outputs`
  std::vector<std::int64_t> input;
  std::int64_t outputs = 0;  // per sample, or per token
};

class Network : public torch::nn::Module {
 public:
  // [batch, …input] → [batch, outputs], or [batch, tokens, outputs] of a sequence; unnormalised.
  virtual torch::Tensor forward(torch::Tensor inputs) = 0;
  // Only for LossSpec::Kind::model, which a TorchScript model can have.
  virtual torch::Tensor own_loss(const torch::Tensor& outputs, const torch::Tensor& targets);
  [[nodiscard]] virtual ModelTensors tensors();
  // Parameters of two dimensions or more begin uniform in ± this; He's for what feeds a rectifier.
  [[nodiscard]] virtual double initial_bound(const std::string& name,
                                             const torch::Tensor& parameter) const;
};

[[nodiscard]] ModelTensors tensors_of(torch::nn::Module&);

// Parameters drawn from `seed` by our own generator with exact arithmetic: the same on every node,
// device and LibTorch. `model` is of a built-in kind that fits `ports` (misfit() says nothing).
[[nodiscard]] std::shared_ptr<Network> make_network(const ModelSpec& model,
                                                    const NetworkPorts& ports, std::uint64_t seed);

}  // namespace gossipd
