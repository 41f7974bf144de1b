// models/training/evaluator.h - a model on the held-out set, on one device, beside training.
//
// Has a network of its own, from the first evaluation on, and on a device a stream of its own, so
// that training goes on beside it. A device that has no room for as many samples at once gets half
// as many, from then on. Only sources of models/ that compile against LibTorch include this.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "models/data/data_set.h"
#include "models/devices/host_batch.h"
#include "models/devices/staging.h"
#include "models/networks/figures.h"
#include "models/networks/flat_model.h"
#include "models/networks/loss.h"

namespace gossipd {

class Evaluator {
 public:
  // `held_out` may be null. `samples_at_once` ≥ 1: as many as are tried first.
  Evaluator(const Job&, const std::string& model_file, torch::Device,
            std::shared_ptr<const DataSet> held_out, std::int64_t samples_at_once);

  // Before the first evaluation. `use` gets a network of the job's initial model, which is gone
  // afterwards: until something is evaluated nobody needs its memory.
  void lend_network(const std::function<void(Network&)>& use);
  // As Engine's; one thread at a time. Throws OutOfMemory where there is no room for one sample.
  [[nodiscard]] std::optional<Figures> evaluate(std::span<const float> model,
                                                const std::atomic<bool>& cancel);
  [[nodiscard]] std::int64_t samples_at_once() const { return at_once_; }

 private:
  void build();
  void take(std::span<const float> model);
  void add_samples(std::int64_t at, std::int64_t size, Score&);

  const Job job_;
  const std::string model_file_;
  const torch::Device device_;
  const std::shared_ptr<const DataSet> held_out_;
  std::shared_ptr<Network> network_;  // null: not built yet; gets its tensors with each evaluation
  std::optional<FlatModel> flat_;     // of the network
  const c10::Stream stream_;
  std::int64_t at_once_;
  std::optional<Staging> staging_;  // from the first evaluation on; nothing on the CPU
  std::optional<HostBatch> batch_;  // as large as the first; used again
};

}  // namespace gossipd
