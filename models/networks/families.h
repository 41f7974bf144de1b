// models/networks/families.h - the makers of each family; make_network() draws their parameters.
#pragma once

#include "models/networks/network.h"

namespace gossipd {

[[nodiscard]] std::shared_ptr<Network> make_mlp(const ModelSpec&, const NetworkPorts&);
[[nodiscard]] std::shared_ptr<Network> make_cnn(const ModelSpec&, const NetworkPorts&);

// resnet20 for small images (He et al. 2015, section 4.2; shortcuts that change shape are
// projections), resnet18 and resnet50 with the stem for large ones.
[[nodiscard]] std::shared_ptr<Network> make_resnet(const ModelSpec&, const NetworkPorts&);

// Transformers with the norm before each part: vit over patches of an image, its mean classified;
// gpt over tokens, each from those before it, the token embedding being the output layer as well.
[[nodiscard]] std::shared_ptr<Network> make_vit(const ModelSpec&, const NetworkPorts&);
[[nodiscard]] std::shared_ptr<Network> make_gpt(const ModelSpec&, const NetworkPorts&);

}  // namespace gossipd
