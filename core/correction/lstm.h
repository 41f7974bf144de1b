// core/correction/lstm.h - a tiny LSTM that learns on line to predict the next value of a sequence.
//
// One layer (Hochreiter and Schmidhuber 1997, with forget gate), `lstm_hidden` cells, one linear
// output:
//
//     i, f, o = σ(W·[x, h, 1])     g = tanh(W·[x, h, 1])
//     c = f⊙c + i⊙g                h = o⊙tanh(c)              y = v·[h, 1]
//
// train() appends an input, takes one step of gradient descent on the squared error of its output,
// through at most `lstm_window` steps back (truncated BPTT, the state before the window taken as
// given; gradient norm clipped), and moves on. Deterministic: the seed fixes the initial weights.
// Doubles, about 400 of them; no allocation beyond the window. Pure; core strand.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

inline constexpr std::size_t lstm_hidden = 8;
inline constexpr std::size_t lstm_window = 8;

class Lstm {
 public:
  struct State {
    std::array<double, lstm_hidden> h{}, c{};
  };

  Lstm(std::size_t inputs, std::uint64_t seed, double learning_rate = 0.05);

  // The output for this input after everything trained on; changes nothing.
  [[nodiscard]] double predict(const std::vector<double>& input) const;
  // `wanted` is what the output for `input` should have been. Returns the output before the step.
  double train(std::vector<double> input, double wanted);

  // For tests: loss ½(y − wanted)² of the last input of a sequence that starts at `start`, and its
  // gradient by the weights.
  [[nodiscard]] double loss(const State& start, std::span<const std::vector<double>> inputs,
                            double wanted) const;
  [[nodiscard]] std::vector<double> gradient(const State& start,
                                             std::span<const std::vector<double>> inputs,
                                             double wanted) const;
  // gates (i, f, g, o) × hidden × (inputs + hidden + 1), then v
  [[nodiscard]] std::vector<double>& weights() { return weights_; }

 private:
  struct Pass {  // of one step
    std::array<double, lstm_hidden> i, f, g, o, c_tanh;
    State before, after;
  };
  [[nodiscard]] Pass step(const State& before, const std::vector<double>& input) const;
  [[nodiscard]] double output(const State& state) const;
  [[nodiscard]] std::size_t row(std::size_t gate, std::size_t cell) const {
    return (gate * lstm_hidden + cell) * columns_;
  }
  [[nodiscard]] std::size_t output_row() const { return 4 * lstm_hidden * columns_; }

  std::size_t inputs_;
  std::size_t columns_;
  double learning_rate_;
  std::vector<double> weights_;
  std::deque<std::vector<double>> window_;
  State window_start_;  // state before the first input of the window
  State state_;         // after the last
};

}  // namespace gossipd
