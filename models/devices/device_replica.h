// models/devices/device_replica.h - the job's model on one device: network, flat vector, gradient
// and optimiser.
//
// Replicas of one job that are given the same gradients hold the same bits. One thread at a time.
// What is asked of a device other than the CPU is only begun when a call returns, unless it gives
// back numbers. Failures of the library are std::exception. Only sources of models/ that compile
// against LibTorch include this.
#pragma once

#include <array>

#include "models/descent/loss_scale.h"
#include "models/descent/optimizer.h"
#include "models/devices/device_work.h"
#include "models/devices/host_batch.h"
#include "models/devices/staging.h"
#include "models/networks/flat_model.h"

namespace gossipd {

// Built-in networks are drawn from the seed, TorchScript models lie in their file.
[[nodiscard]] std::shared_ptr<Network> build_network(const Job&, const std::string& model_file,
                                                     torch::Device);

// At most so many samples are on a device at once, for a batch of `samples`.
[[nodiscard]] std::int64_t micro_batch(const Job&, std::int64_t samples);

class DeviceReplica {
 public:
  DeviceReplica(const Job&, const std::string& model_file, torch::Device);

  [[nodiscard]] torch::Device device() const { return device_; }
  [[nodiscard]] FlatModel& flat() { return flat_; }
  // Makes what a model draws at random (dropout) a function of `visit` (BatchSource::visit), so
  // that a resumed run draws the same and other nodes something else.
  void seed_dropout(std::uint64_t visit) const;

  // Samples [begin, begin + count) of a batch.
  struct Part {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };
  // Adds what the part has in the gradient of the whole batch's mean loss; the batch must stay as
  // it is until loss(). `visit` is the whole batch's. `turn` (0 or 1) is where its share of that
  // loss is kept.
  void backward(const HostBatch&, Part, std::uint64_t visit, std::size_t turn);
  // Waits for that backward().
  [[nodiscard]] double loss(std::size_t turn) { return losses_[turn].take(); }
  // To be called before anybody reads the gradient. False: it has overflowed in fp16, and is zero
  // now; there is no step to take, and the model's statistics are those of before backward().
  [[nodiscard]] bool unscale_gradient();
  // After it has returned false: a smaller scale may yet help, so that a loss which is not finite
  // says nothing about the model.
  [[nodiscard]] bool may_scale_down() const { return may_scale_down_; }
  // One step of the optimiser along the gradient, whose norm is first cut to the job's, if it has
  // one; the gradient is zero then.
  void descend(double learning_rate);
  void forget_gradient();

  // P floats; through pinned memory where the device is not the CPU.
  void copy_model(std::span<float> out);
  [[nodiscard]] OptimizerState optimizer_state();
  // As Engine's.
  void restore_optimizer(const OptimizerState&);

 private:
  [[nodiscard]] torch::Tensor loss_of_part(const HostBatch&, Part);
  void clip_gradient();
  [[nodiscard]] torch::Tensor host_view(std::span<float> host);

  const Job job_;
  const torch::Device device_;
  std::shared_ptr<Network> network_;
  FlatModel flat_;
  torch::Tensor momentum_;  // not defined: SGD without momentum
  torch::Tensor variance_;  // AdamW's alone
  Step optimizer_steps_ = 0;
  std::optional<LossScale> scale_;  // fp16's
  bool may_scale_down_ = false;
  torch::Tensor statistics_before_;  // backward(), in fp16: what overflows gets into them
  std::optional<Staging> staging_;   // nothing on the CPU
  std::array<LateNumber, 2> losses_;
};

}  // namespace gossipd
