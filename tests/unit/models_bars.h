// tests/unit/models_bars.h - a small set of pictures, jobs on it, and engines for them.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "models/training/torch_engine.h"
#include "models_test_support.h"

namespace gossipd::test {

// Small pictures of three classes: a bright row, a bright column, noise.
class Bars : public DataSet {
 public:
  explicit Bars(const DataSpec& spec) : DataSet(spec) {}
  std::size_t count() const override { return 192; }
  void write(std::size_t index, const Variation*, const Batch& batch,
             std::size_t at) const override {
    const auto pixels = place<float>(batch.inputs, at, 3 * 16 * 16);
    const std::size_t label = index % 3;
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      const bool bright =
          (label == 0 && i / 16 % 16 == index % 16) || (label == 1 && i % 16 == index % 16);
      pixels[i] = static_cast<float>(0.5 * std::sin(static_cast<double>(31 * index + 7 * i)) +
                                     (bright ? 1.0 : 0.0));
    }
    place<std::int64_t>(batch.targets, at, 1)[0] = static_cast<std::int64_t>(label);
  }
};

inline const std::string cnn = "[model]\nkind = 'cnn'\nwidth = 4\nhidden = [16]\n";
inline const std::string sgd = "[optimizer]\nlearning_rate = 0.05\nweight_decay = 1e-3\n";
inline const std::string adamw =
    "[optimizer]\nkind = 'adamw'\nlearning_rate = 0.003\nweight_decay = 0.05\n";

inline Job bars_job(const std::string& model, const std::string& rest, int batch = 13) {
  return parse_job(
      "name = 'bars'\nseed = 5\nbatch = " + std::to_string(batch) +
      "\nbudget_samples = 100000\n"
      "[data]\nkind = 'safetensors'\nshape = [3, 16, 16]\ntrain_files = ['x']\nclasses = 3\n"
      "[schedule]\nkind = 'constant'\n" +
      model + rest);
}

inline std::unique_ptr<GradientEngine> engine_on(const std::string& devices, const Job& job,
                                                 const std::string& file = "") {
  const auto set = std::make_shared<Bars>(job.data);
  auto engine = make_torch_engine(
      job, devices, 1, BatchSource(set, DataOrder(job.seed, set->count(), {})), set, file);
  REQUIRE_MESSAGE(engine, (engine ? "" : engine.error().text));
  return std::move(*engine);
}

}  // namespace gossipd::test
