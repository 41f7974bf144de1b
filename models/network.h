// models/network.h - the built-in networks, and any module as one flat vector.
//
// FlatModel moves a module's parameters into one contiguous vector and makes them views of it, and
// their gradients views of a second one: a snapshot is one copy, an update one addition, an optimiser
// step one pass. Only models/*.cpp that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "core/model/schema.h"
#include "models/job.h"

namespace gossipd {

// images: [batch, channels, rows, columns] → [batch, classes], unnormalised.
class Network : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

// Parameters drawn from `seed` by our own generator: the same on every node, device and LibTorch.
[[nodiscard]] std::shared_ptr<Network> make_network(const ModelSpec&, const DataSpec&, std::uint64_t seed);

class FlatModel {
 public:
  // Moves the module to the device. Parameters are floats; so are running statistics (kind
  // `statistic`); counters are kept as floats in `local` segments. Throws std::invalid_argument
  // when the module holds anything else, or nothing.
  FlatModel(torch::nn::Module& module, torch::Device device);

  [[nodiscard]] const Schema& schema() const { return schema_; }
  // What the optimiser works on, on the device; parameters come first in the schema.
  [[nodiscard]] torch::Tensor& trained() { return trained_; }    // [T], T ≤ P
  [[nodiscard]] torch::Tensor& gradient() { return gradient_; }  // [T]; backward() adds to it

  void copy_to(std::span<float> host);
  void copy_from(std::span<const float> host);
  void add(std::span<const float> host);

 private:
  struct Counter {
    torch::Tensor tensor;  // of integers, where the module keeps it
    std::uint64_t offset;
  };
  void pull_counters();
  void push_counters();

  Schema schema_;
  torch::Tensor values_;   // [P]
  torch::Tensor trained_;  // the first T of values_
  torch::Tensor gradient_;
  std::vector<Counter> counters_;
};

}  // namespace gossipd
