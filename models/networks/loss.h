// models/networks/loss.h - what is minimised, and what an evaluation counts. Only sources of
// models/ that compile against LibTorch include this.
#pragma once

#include <torch/torch.h>

#include "models/networks/figures.h"
#include "models/networks/network.h"

namespace gossipd {

// Mean over the batch; `outputs` and `targets` as fit_error() accepts them. Code of the formulas:
// torch::nn::functional.
[[nodiscard]] torch::Tensor loss_of(LossSpec::Kind, Network&, const torch::Tensor& outputs,
                                    const torch::Tensor& targets);

// Why outputs of this shape and type do not fit the loss and its targets; nothing when they do.
[[nodiscard]] std::optional<std::string> fit_error(LossSpec::Kind, const torch::Tensor& outputs,
                                                   const torch::Tensor& targets,
                                                   std::int64_t classes);

// Sums over the batches of an evaluation.
class Score {
 public:
  Score(LossSpec::Kind kind, std::int64_t classes) : kind_(kind), classes_(classes) {}
  void add(double loss, const torch::Tensor& outputs, const torch::Tensor& targets);
  [[nodiscard]] Figures figures() const;

 private:
  [[nodiscard]] bool are_scores(const torch::Tensor& outputs, const torch::Tensor& targets) const;

  LossSpec::Kind kind_;
  std::int64_t classes_;
  double loss_ = 0;  // Σ over samples
  std::int64_t samples_ = 0;
  std::int64_t answers_ = 0;  // samples, or tokens
  std::int64_t right_ = 0;
  std::int64_t near_ = 0;     // among the five likeliest
  bool has_answers_ = false;  // targets are classes
  bool has_near_ = false;     // of more than five
  bool tokens_ = false;
};

}  // namespace gossipd
