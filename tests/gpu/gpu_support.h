// tests/gpu/gpu_support.h - what the programs of this folder share: the device under test, made-up
// samples, jobs on them, and the figures that go into the report.
#pragma once

#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/descent/optimizer.h"
#include "models/training/torch_engine.h"
#include "tests/unit/models_test_support.h"

namespace gossipd::gpu {

// GOSSIPD_GPU_DEVICE; "cpu" is a dry run of the program itself, on small models.
[[nodiscard]] torch::Device device();
[[nodiscard]] inline bool is_dry() { return !device().is_cuda(); }
[[nodiscard]] nlohmann::json& figures();
// Says in the report what this run does not show, and why.
void not_covered(const std::string& what);

// Made-up samples of a job's shape: class k has a wave of its own; of tokens each is the sum of the
// two before it.
class Made : public DataSet {
 public:
  explicit Made(const DataSpec& spec, std::size_t count = 512) : DataSet(spec), count_(count) {
    const std::size_t values = input().values();
    if (input().element == SampleShape::Element::int64) return;
    for (std::size_t index = 0; index < count; ++index)
      for (std::size_t i = 0; i < values; ++i)
        images_.push_back(static_cast<float>(
            std::sin(static_cast<double>(i) * (0.1 + 0.2 * static_cast<double>(index % 4))) +
            0.3 * std::sin(static_cast<double>(31 * index + 7 * i))));
  }
  std::size_t count() const override { return count_; }
  void write(std::size_t index, const Variation*, const Batch& batch,
             std::size_t at) const override {
    const std::size_t values = input().values();
    if (input().element == SampleShape::Element::int64) {
      const auto in = place<std::int64_t>(batch.inputs, at, values);
      const auto out = place<std::int64_t>(batch.targets, at, values);
      std::int64_t a = static_cast<std::int64_t>(index % 7), b = 1;
      for (std::size_t i = 0; i < values; ++i) {
        in[i] = a;
        a = std::exchange(b, (a + b) % 13);
        out[i] = a;
      }
      return;
    }
    std::ranges::copy(std::span(images_).subspan(index * values, values),
                      place<float>(batch.inputs, at, values).begin());
    place<std::int64_t>(batch.targets, at, 1)[0] = static_cast<std::int64_t>(index % 4);
  }

 private:
  const std::size_t count_;
  std::vector<float> images_;  // one after the other
};

inline const std::string images =
    "[data]\nkind = 'safetensors'\nshape = [3, 32, 32]\ntrain_files = ['x']\nclasses = 4\n";
inline const std::string large_images =
    "[data]\nkind = 'safetensors'\nshape = [3, 64, 64]\ntrain_files = ['x']\nclasses = 4\n";
[[nodiscard]] inline std::string tokens(int length) {
  return "[data]\nkind = 'text'\ntrain_files = ['x']\nlength = " + std::to_string(length) + "\n";
}
inline const std::string sgd = "[optimizer]\nlearning_rate = 0.02\nweight_decay = 1e-4\n";
inline const std::string adamw =
    "[optimizer]\nkind = 'adamw'\nlearning_rate = 0.001\nweight_decay = 0.01\n";

[[nodiscard]] inline Job job(const std::string& model, const std::string& data,
                             const std::string& rest = sgd, int batch = 16) {
  auto out = Job::parse("name = 'gpu'\nseed = 5\nbatch = " + std::to_string(batch) +
                            "\nbudget_samples = 1_000_000_000\n[schedule]\nkind = 'constant'\n" +
                            "[model]\n" + model + data + rest,
                        "gpu");
  REQUIRE_MESSAGE(out, (out ? "" : out.error().text));
  return *out;
}

[[nodiscard]] inline std::unique_ptr<GradientEngine> engine(const Job& job,
                                                            const std::string& device,
                                                            const std::string& file = "") {
  const auto set = std::make_shared<Made>(job.data);
  auto out = make_torch_engine(job, device, 1,
                               BatchSource(set, DataOrder(job.seed, set->count(), {})), set, file);
  REQUIRE_MESSAGE(out, (out ? "" : out.error().text));
  return std::move(*out);
}
[[nodiscard]] inline std::unique_ptr<GradientEngine> engine(const Job& job) {
  return engine(job, device().str());
}

using test::model_of;
using test::relative_distance;

// Waits until the device has done all that it was given.
inline void drain() {
  if (!is_dry()) torch::cuda::synchronize(device().index());
}

}  // namespace gossipd::gpu
