// models/networks/figures.h - what an evaluation says about a model. A plain value; any thread.
#pragma once

#include <cmath>
#include <optional>

namespace gossipd {

// On the held-out set.
struct Figures {
  double loss = 0;  // mean over samples
  // 0 … 1, where targets are classes; of tokens over all of them
  std::optional<double> accuracy;
  std::optional<double> top5_accuracy;  // … and there are more than five
  std::optional<double> perplexity;     // of tokens, where the loss is their cross-entropy
  bool tokens = false;                  // targets are tokens

  // By accuracy, and where that is equal by loss; of tokens and numbers by loss. Any loss is better
  // than NaN.
  [[nodiscard]] bool is_better_than(const Figures& other) const {
    if (std::isnan(loss) != std::isnan(other.loss)) return std::isnan(other.loss);
    if (goes_by_accuracy(other) && *accuracy != *other.accuracy) return *accuracy > *other.accuracy;
    return loss < other.loss;
  }
  // Only the loss may tell them apart.
  [[nodiscard]] bool ties_with(const Figures& other) const {
    return goes_by_accuracy(other) && *accuracy == *other.accuracy;
  }

 private:
  [[nodiscard]] bool goes_by_accuracy(const Figures& other) const {
    return accuracy && other.accuracy && !tokens;
  }
};

}  // namespace gossipd
