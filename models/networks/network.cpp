#include "models/networks/network.h"

#include <cmath>
#include <stdexcept>

#include "core/base/random.h"
#include "models/networks/families.h"

namespace gossipd {

namespace {

using torch::Tensor;

// Only products, sums and square roots, which are exact to the bit everywhere: no normal
// distribution.
void initialise(Network& network, std::uint64_t seed) {
  const torch::NoGradGuard no_gradient;
  Random random(seed);
  for (auto& [name, parameter] : network.tensors().parameters) {
    float* values = parameter.data_ptr<float>();
    if (parameter.dim() < 2) {
      // The scale of a norm is its only one-dimensional weight; everything else is a bias.
      std::fill_n(values, parameter.numel(), name.ends_with(".weight") ? 1.0f : 0.0f);
      continue;
    }
    const double bound = network.initial_bound(name, parameter);
    for (std::int64_t i = 0; i < parameter.numel(); ++i)
      values[i] = static_cast<float>(bound * (2 * random.uniform() - 1));
  }
}

std::shared_ptr<Network> make_layers(const ModelSpec& model, const NetworkPorts& ports) {
  using Kind = ModelSpec::Kind;
  switch (model.kind) {
    case Kind::mlp: return make_mlp(model, ports);
    case Kind::cnn: return make_cnn(model, ports);
    case Kind::resnet20:
    case Kind::resnet18:
    case Kind::resnet50: return make_resnet(model, ports);
    case Kind::vit: return make_vit(model, ports);
    case Kind::gpt: return make_gpt(model, ports);
    case Kind::torchscript:
    case Kind::external: break;
  }
  GOSSIPD_ASSERT(!"a built-in kind");
  return nullptr;
}

}  // namespace

Tensor Network::own_loss(const Tensor&, const Tensor&) {
  throw std::invalid_argument("the model has no method loss(outputs, targets)");
}

ModelTensors Network::tensors() { return tensors_of(*this); }

double Network::initial_bound(const std::string&, const Tensor& parameter) const {
  // inputs of one output
  return std::sqrt(6.0 / static_cast<double>(parameter.numel() / parameter.size(0)));
}

ModelTensors tensors_of(torch::nn::Module& module) {
  ModelTensors out;
  for (const auto& item : module.named_parameters())
    out.parameters.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) out.buffers.push_back({item.key(), item.value()});
  return out;
}

std::shared_ptr<Network> make_network(const ModelSpec& model, const NetworkPorts& ports,
                                      std::uint64_t seed) {
  std::shared_ptr<Network> network = make_layers(model, ports);
  initialise(*network, seed);
  return network;
}

}  // namespace gossipd
