#include "models/networks/loss.h"

#include <cmath>

namespace gossipd {

namespace {

using torch::Tensor;
namespace functional = torch::nn::functional;

constexpr std::int64_t near_max = 5;  // top-5

std::string words(const Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  return text + "]";
}

// One output for two classes: targets become what a sigmoid is held against.
bool is_one_logit(const Tensor& outputs, const Tensor& targets) {
  return targets.scalar_type() == torch::kInt64 && outputs.numel() == targets.numel();
}

Tensor cross_entropy(const Tensor& outputs, const Tensor& targets) {
  // Autocast or not, the sum over many classes is made in fp32.
  return functional::cross_entropy(outputs.flatten(0, -2).to(torch::kFloat32), targets.flatten());
}

}  // namespace

Tensor loss_of(LossSpec::Kind kind, Network& network, const Tensor& outputs,
               const Tensor& targets) {
  switch (kind) {
    case LossSpec::Kind::cross_entropy: return cross_entropy(outputs, targets);
    case LossSpec::Kind::mse:
      return functional::mse_loss(outputs.to(torch::kFloat32).reshape(targets.sizes()), targets);
    case LossSpec::Kind::bce:
      return functional::binary_cross_entropy_with_logits(
          outputs.to(torch::kFloat32).reshape(targets.sizes()), targets.to(torch::kFloat32));
    case LossSpec::Kind::model: break;
  }
  return network.own_loss(outputs, targets);
}

std::optional<std::string> fit_error(LossSpec::Kind kind, const Tensor& outputs,
                                     const Tensor& targets, std::int64_t classes) {
  const std::string got =
      "the model's output is " + words(outputs) + ", the targets are " + words(targets) + ": ";
  const bool floats = at::isFloatingType(outputs.scalar_type());
  const bool class_targets = targets.scalar_type() == torch::kInt64;
  switch (kind) {
    case LossSpec::Kind::model: return std::nullopt;  // own_loss() is tried instead
    case LossSpec::Kind::cross_entropy: {
      if (!class_targets)
        return got + "cross_entropy needs classes as targets; use mse or bce under [loss]";
      const bool shaped =
          floats && outputs.dim() == targets.dim() + 1 &&
          outputs.sizes().slice(0, static_cast<std::size_t>(targets.dim())) == targets.sizes();
      if (!shaped)
        return got +
               "cross_entropy needs floats of the targets' shape with one more dimension, of " +
               std::to_string(classes) + " classes";
      if (outputs.size(-1) != classes)
        return got + "the data have " + std::to_string(classes) + " classes, the model has " +
               std::to_string(outputs.size(-1)) +
               " outputs; set classes under [data], or change the model";
      return std::nullopt;
    }
    case LossSpec::Kind::mse:
      if (class_targets) return got + "mse needs floats as targets; use cross_entropy under [loss]";
      break;
    case LossSpec::Kind::bce:
      if (class_targets && classes != 2)
        return got +
               "bce needs floats in [0, 1] or two classes as targets; use cross_entropy under "
               "[loss]";
      break;
  }
  if (!floats || outputs.numel() != targets.numel() || outputs.dim() == 0 ||
      outputs.size(0) != targets.size(0))
    return got + std::string(name_of(kind)) + " needs one float for each target";
  return std::nullopt;
}

// Outputs of a model with a loss of its own may be a logit or an embedding. A vocabulary may be
// padded.
bool Score::are_scores(const Tensor& outputs, const Tensor& targets) const {
  const std::int64_t last = outputs.size(-1);
  if (last != classes_ && (targets.dim() == 1 || last < classes_)) return false;
  return outputs.numel() == targets.numel() * last;
}

void Score::add(double loss, const Tensor& outputs, const Tensor& targets) {
  const std::int64_t samples = targets.size(0);
  loss_ += loss * static_cast<double>(samples);
  samples_ += samples;
  if (kind_ == LossSpec::Kind::bce && is_one_logit(outputs, targets)) {
    has_answers_ = true;
    answers_ += targets.numel();
    right_ += outputs.flatten().gt(0).eq(targets.flatten().gt(0)).sum().item<std::int64_t>();
  }
  const bool classes = targets.scalar_type() == torch::kInt64 &&
                       outputs.dim() == targets.dim() + 1 &&
                       (kind_ == LossSpec::Kind::cross_entropy || kind_ == LossSpec::Kind::model);
  if (!classes || !are_scores(outputs, targets)) return;
  has_answers_ = true;
  tokens_ = targets.dim() > 1;
  answers_ += targets.numel();
  right_ += outputs.argmax(-1).eq(targets).sum().item<std::int64_t>();
  if (outputs.size(-1) <= near_max) return;
  has_near_ = true;
  near_ +=
      std::get<1>(outputs.topk(near_max, -1)).eq(targets.unsqueeze(-1)).sum().item<std::int64_t>();
}

Figures Score::figures() const {
  Figures out;
  out.loss = loss_ / static_cast<double>(samples_);
  if (has_answers_) out.accuracy = static_cast<double>(right_) / static_cast<double>(answers_);
  if (has_near_) out.top5_accuracy = static_cast<double>(near_) / static_cast<double>(answers_);
  out.tokens = tokens_;
  if (tokens_ && kind_ == LossSpec::Kind::cross_entropy) out.perplexity = std::exp(out.loss);
  return out;
}

}  // namespace gossipd
