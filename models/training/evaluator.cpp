#include "models/training/evaluator.h"

#include <c10/core/StreamGuard.h>

#include "models/devices/autocast.h"
#include "models/devices/device_replica.h"
#include "models/devices/torch_device.h"
#include "models/networks/torchscript.h"
#include "models/training/engine.h"

namespace gossipd {

namespace {

using torch::Tensor;

c10::Stream stream_beside(torch::Device device) {
  return device.is_cpu() ? current_stream(device) : side_stream(device);
}

}  // namespace

Evaluator::Evaluator(const Job& job, const std::string& model_file, torch::Device device,
                     std::shared_ptr<const DataSet> held_out, std::int64_t samples_at_once)
    : job_(job),
      model_file_(model_file),
      device_(device),
      held_out_(std::move(held_out)),
      stream_(stream_beside(device)),
      at_once_(samples_at_once) {}

void Evaluator::lend_network(const std::function<void(Network&)>& use) {
  const std::shared_ptr<Network> network = build_network(job_, model_file_, device_);
  use(*network);
}

void Evaluator::build() {
  auto network = build_network(job_, model_file_, device_);
  network->train(false);
  flat_.emplace(network->tensors(), FlatModel::Gradient::no);
  network_ = std::move(network);  // a device without room for both keeps neither
}

std::optional<Figures> Evaluator::evaluate(std::span<const float> model,
                                           const std::atomic<bool>& cancel) {
  if (!held_out_) return std::nullopt;
  const torch::NoGradGuard no_gradient;
  const c10::StreamGuard guard(stream_);
  if (!flat_) build();
  take(model);
  Score score(job_.loss.kind, job_.data.classes);
  const auto count = static_cast<std::int64_t>(held_out_->count());
  for (std::int64_t at = 0; at < count;) {
    if (cancel.load()) return std::nullopt;
    const std::int64_t size = std::min(at_once_, count - at);
    try {
      add_samples(at, size, score);
      at += size;
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      if (size == 1) throw in_words(error, device_);
      at_once_ = size / 2;
    }
  }
  return score.figures();
}

void Evaluator::take(std::span<const float> model) {
  if (device_.is_cpu()) return flat_->copy_from(model);
  if (!staging_) staging_.emplace(device_);
  const auto trained = static_cast<std::size_t>(flat_->trained().numel());
  staging_->to_device(model.first(trained), flat_->trained());
  staging_->to_device(model.subspan(trained), flat_->untrained());
  flat_->push_counters();
}

// All of them are in the score then, or none.
void Evaluator::add_samples(std::int64_t at, std::int64_t size, Score& score) {
  if (!batch_) batch_.emplace(held_out_->input(), held_out_->target(), size, device_);
  for (std::int64_t i = 0; i < size; ++i)
    held_out_->write(static_cast<std::size_t>(at + i), nullptr, batch_->view(),
                     static_cast<std::size_t>(i));
  const auto to_device = [&](const Tensor& host) {
    return host.narrow(0, 0, size).to(device_, /*non_blocking=*/true);
  };
  const Tensor targets = to_device(batch_->targets);
  const AutocastScope autocast(job_.training.precision, device_);
  const Tensor outputs = network_->forward(to_device(batch_->inputs));
  // Waits for the loss, so the batch may be written to when this returns.
  const double loss = loss_of(job_.loss.kind, *network_, outputs, targets).item<double>();
  Score with = score;
  with.add(loss, outputs, targets);
  score = with;
}

}  // namespace gossipd
