#include "core/correction/lstm.h"

#include <cmath>

#include "core/base/random.h"
#include "core/base/result.h"

namespace gossipd {
namespace {

constexpr double gradient_norm_max = 1.0;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

Lstm::Lstm(std::size_t inputs, std::uint64_t seed, double learning_rate)
    : inputs_(inputs),
      columns_(inputs + lstm_hidden + 1),
      learning_rate_(learning_rate),
      weights_(output_row() + lstm_hidden + 1) {
  Random random(seed);
  const double range = 1.0 / std::sqrt(static_cast<double>(columns_));
  for (double& weight : weights_) weight = (2 * random.uniform() - 1) * range;
  // remember, to begin with
  for (std::size_t cell = 0; cell < lstm_hidden; ++cell)
    weights_[row(1, cell) + columns_ - 1] = 1.0;
  // predict about nothing
  for (std::size_t j = 0; j <= lstm_hidden; ++j) weights_[output_row() + j] *= 0.1;
}

Lstm::Pass Lstm::step(const State& before, const std::vector<double>& input) const {
  GOSSIPD_ASSERT(input.size() == inputs_);
  Pass pass;
  pass.before = before;
  const auto gate = [&](std::size_t which, std::size_t cell) {
    const double* w = weights_.data() + row(which, cell);
    double sum = w[columns_ - 1];
    for (std::size_t j = 0; j < inputs_; ++j) sum += w[j] * input[j];
    for (std::size_t j = 0; j < lstm_hidden; ++j) sum += w[inputs_ + j] * before.h[j];
    return sum;
  };
  for (std::size_t cell = 0; cell < lstm_hidden; ++cell) {
    pass.i[cell] = sigmoid(gate(0, cell));
    pass.f[cell] = sigmoid(gate(1, cell));
    pass.g[cell] = std::tanh(gate(2, cell));
    pass.o[cell] = sigmoid(gate(3, cell));
    pass.after.c[cell] = pass.f[cell] * before.c[cell] + pass.i[cell] * pass.g[cell];
    pass.c_tanh[cell] = std::tanh(pass.after.c[cell]);
    pass.after.h[cell] = pass.o[cell] * pass.c_tanh[cell];
  }
  return pass;
}

double Lstm::output(const State& state) const {
  const double* v = weights_.data() + output_row();
  double sum = v[lstm_hidden];
  for (std::size_t j = 0; j < lstm_hidden; ++j) sum += v[j] * state.h[j];
  return sum;
}

double Lstm::predict(const std::vector<double>& input) const {
  return output(step(state_, input).after);
}

double Lstm::loss(const State& start, std::span<const std::vector<double>> inputs,
                  double wanted) const {
  State state = start;
  for (const auto& input : inputs) state = step(state, input).after;
  const double error = output(state) - wanted;
  return 0.5 * error * error;
}

std::vector<double> Lstm::gradient(const State& start, std::span<const std::vector<double>> inputs,
                                   double wanted) const {
  std::vector<Pass> passes;
  State state = start;
  for (const auto& input : inputs) {
    passes.push_back(step(state, input));
    state = passes.back().after;
  }
  std::vector<double> gradient(weights_.size(), 0.0);
  const double error = output(state) - wanted;
  const double* v = weights_.data() + output_row();
  double* dv = gradient.data() + output_row();
  std::array<double, lstm_hidden> dh{}, dc{};
  for (std::size_t j = 0; j < lstm_hidden; ++j) {
    dv[j] = error * state.h[j];
    dh[j] = error * v[j];
  }
  dv[lstm_hidden] = error;
  for (std::size_t t = passes.size(); t-- > 0;) {
    const Pass& p = passes[t];
    std::array<double, lstm_hidden> dh_before{}, dc_before{};
    for (std::size_t cell = 0; cell < lstm_hidden; ++cell) {
      const double through_c =
          dc[cell] + dh[cell] * p.o[cell] * (1 - p.c_tanh[cell] * p.c_tanh[cell]);
      const double sums[4] = {through_c * p.g[cell] * p.i[cell] * (1 - p.i[cell]),
                              through_c * p.before.c[cell] * p.f[cell] * (1 - p.f[cell]),
                              through_c * p.i[cell] * (1 - p.g[cell] * p.g[cell]),
                              dh[cell] * p.c_tanh[cell] * p.o[cell] * (1 - p.o[cell])};
      dc_before[cell] = through_c * p.f[cell];
      for (std::size_t gate = 0; gate < 4; ++gate) {
        const double* w = weights_.data() + row(gate, cell);
        double* dw = gradient.data() + row(gate, cell);
        for (std::size_t j = 0; j < inputs_; ++j) dw[j] += sums[gate] * inputs[t][j];
        for (std::size_t j = 0; j < lstm_hidden; ++j) {
          dw[inputs_ + j] += sums[gate] * p.before.h[j];
          dh_before[j] += sums[gate] * w[inputs_ + j];
        }
        dw[columns_ - 1] += sums[gate];
      }
    }
    dh = dh_before;
    dc = dc_before;
  }
  return gradient;
}

double Lstm::train(std::vector<double> input, double wanted) {
  const double before = predict(input);
  window_.push_back(std::move(input));
  if (window_.size() > lstm_window) {
    window_start_ = step(window_start_, window_.front()).after;
    window_.pop_front();
  }
  const std::vector<std::vector<double>> inputs(window_.begin(), window_.end());
  const std::vector<double> slope = gradient(window_start_, inputs, wanted);
  double norm = 0;
  for (const double d : slope) norm += d * d;
  norm = std::sqrt(norm);
  const double rate = learning_rate_ * (norm > gradient_norm_max ? gradient_norm_max / norm : 1.0);
  for (std::size_t j = 0; j < weights_.size(); ++j) weights_[j] -= rate * slope[j];
  state_ = window_start_;
  for (const auto& x : inputs) state_ = step(state_, x).after;
  return before;
}

}  // namespace gossipd
