// models/networks/flat_model.h - the tensors of any model as one flat vector.
//
// FlatModel moves a model's parameters into one contiguous vector and makes them views of it, and
// their gradients views of a second one: a snapshot is one copy, an update one addition, an
// optimiser step one pass. Each tensor begins at a multiple of 16 bytes: cuDNN's normalisation ends
// in "misaligned address" otherwise, as LibTorch's own memory is always aligned. Only sources of
// models/ that compile against LibTorch include this.
#pragma once

#include "core/model/schema.h"
#include "models/networks/network.h"

namespace gossipd {

class FlatModel {
 public:
  // `tensors` lie on one device, where the vector will also lie. In the schema's order:
  //   parameter   trained floats
  //   statistic   running means and variances, and parameters that are not trained
  //   local       counters and masks (integers, booleans), kept as floats
  // Tensors that share their memory stay one. Buffers with infinities (masks) are constants of the
  // model and stay outside. Throws std::invalid_argument, naming the tensor, for any other element
  // type, integers beyond 2^24, names that checkpoints give to the optimiser's state
  // (state_names.h), and when nothing can be trained.
  enum class Gradient { no, yes };  // a model that is only looked at needs none
  explicit FlatModel(const ModelTensors& tensors, Gradient gradient = Gradient::yes);

  // The tensors that a FlatModel of `tensors` would bring together, one for each segment, under the
  // segment's name. Throws as it does, but of names.
  [[nodiscard]] static std::vector<ModelTensors::Named> kept(const ModelTensors& tensors);

  [[nodiscard]] const Schema& schema() const { return schema_; }
  [[nodiscard]] torch::Tensor& values() { return values_; }  // [P], all that follows but gradient()
  // What the optimiser works on, on the device; parameters come first in the schema.
  [[nodiscard]] torch::Tensor& trained() { return trained_; }  // [T], T ≤ P
  // The rest: statistics, and room for counters, which lie in the module.
  [[nodiscard]] torch::Tensor& untrained() { return untrained_; }  // [P − T]
  [[nodiscard]] torch::Tensor& gradient() { return gradient_; }    // [T]; backward() adds to it

  void copy_to(std::span<float> host);
  void copy_from(std::span<const float> host);
  // Running variances fall by half at most, so that what is added from a neighbour's very different
  // ones leaves them positive.
  void add(std::span<const float> host);
  void add(const torch::Tensor& values);  // [P], on the device
  // Brings counters into the vector, before somebody reads it as it lies.
  void pull_counters();
  // … and back, after somebody has written to the vector.
  void push_counters();

 private:
  struct Counter {
    torch::Tensor tensor;  // of integers, where the module keeps it
    std::uint64_t offset;
  };
  struct Placed;
  [[nodiscard]] static std::vector<Placed> place(const ModelTensors&);

  Schema schema_;
  torch::Tensor values_;   // [P]
  torch::Tensor trained_;  // the first T of values_
  torch::Tensor untrained_;
  torch::Tensor gradient_;
  std::vector<Counter> counters_;
  std::vector<torch::Tensor> variances_;  // views of values_
};

}  // namespace gossipd
