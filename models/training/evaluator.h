// models/training/evaluator.h - a model on the held-out set, on one device, beside training.
//
// Has a network of its own and, on a device, a stream of its own, so that training goes on beside
// it. A device that has no room for as many samples at once gets half as many, from then on. Only
// sources of models/ that compile against LibTorch include this.
#pragma once

#include <atomic>
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

  // Gets its tensors anew with each evaluation.
  [[nodiscard]] Network& network() { return *network_; }
  // As Engine's; one thread at a time. Throws OutOfMemory where there is no room for one sample.
  [[nodiscard]] std::optional<Figures> evaluate(std::span<const float> model,
                                                const std::atomic<bool>& cancel);
  [[nodiscard]] std::int64_t samples_at_once() const { return at_once_; }

 private:
  void take(std::span<const float> model);
  void add_samples(std::int64_t at, std::int64_t size, Score&);

  const Job job_;
  const torch::Device device_;
  const std::shared_ptr<const DataSet> held_out_;
  const std::shared_ptr<Network> network_;
  FlatModel flat_;
  const c10::Stream stream_;
  std::int64_t at_once_;
  std::optional<Staging> staging_;  // from the first evaluation on; nothing on the CPU
  std::optional<HostBatch> batch_;  // as large as the first; used again
};

}  // namespace gossipd
