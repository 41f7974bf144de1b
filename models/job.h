// models/job.h - what a cluster trains: model, data schema, optimiser, schedule, batch, budget, seed.
//
// A job is a TOML file of at most 64 KiB. What travels and is hashed is its canonical text: every
// default filled in, keys in a fixed order, so two files that mean the same have the same JobHash.
// Paths, devices, links and codecs are node policy and not part of it. A plain value; any thread.
#pragma once

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

inline constexpr std::size_t job_bytes_max = 64 * 1024;
inline constexpr std::size_t job_hidden_layers_max = 16;
inline constexpr std::size_t job_milestones_max = 64;
inline constexpr Samples job_budget_samples_max = Samples{1} << 60;

struct ModelSpec {
  enum class Kind { mlp, cnn };
  Kind kind = Kind::cnn;
  std::vector<std::int64_t> hidden;  // fully connected layers before the last; default cnn {96}, mlp {128}
  std::int64_t width = 16;           // cnn: channels of the first convolution; the second has twice as many
  bool operator==(const ModelSpec&) const = default;
};

struct DataSpec {
  std::vector<std::int64_t> shape = {1, 28, 28};  // of one sample: channels, rows, columns
  std::int64_t classes = 10;
  double mean = 0;       // of the pixels scaled to [0, 1]; samples are normalised as (pixel/255 - mean) / deviation
  double deviation = 1;
  // File names inside the node's data directory; each may also lie there as NAME.gz.
  std::string train_images = "train-images-idx3-ubyte";
  std::string train_labels = "train-labels-idx1-ubyte";
  std::string test_images = "t10k-images-idx3-ubyte";
  std::string test_labels = "t10k-labels-idx1-ubyte";
  bool operator==(const DataSpec&) const = default;
};

struct OptimizerSpec {
  enum class Kind { sgd, adamw };
  Kind kind = Kind::sgd;
  double learning_rate = 0.05;  // the schedule's peak; default of adamw 0.001
  double weight_decay = 0;      // sgd: added to the gradient; adamw: decoupled from it
  // sgd
  double momentum = 0.9;
  bool nesterov = false;
  // adamw
  double beta1 = 0.9;           // how slowly the mean of the gradients moves
  double beta2 = 0.999;         // and that of their squares
  double epsilon = 1e-8;        // added to the root of the latter
  bool operator==(const OptimizerSpec&) const = default;
};

// All positions are samples that the whole cluster has trained on.
struct ScheduleSpec {
  enum class Kind { constant, cosine, step };
  Kind kind = Kind::cosine;
  Samples warmup_samples = 0;          // linear up to the peak
  double final_fraction = 0;           // cosine: learning rate at the budget's end / peak
  std::vector<Samples> milestones;     // step: at each the learning rate is multiplied by gamma
  double gamma = 0.1;
  bool operator==(const ScheduleSpec&) const = default;
};

struct Job {
  std::string name;
  std::uint64_t seed = 1;              // of the initial model and the data order; below 2^63
  std::uint32_t batch = 32;            // samples per step of one node
  Samples budget_samples = 0;          // of the whole cluster; the job ends when they are spent
  Samples evaluate_every_samples = 0;  // of the whole cluster; 0 = only at the end
  ModelSpec model;
  DataSpec data;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;

  // `origin` is what messages call the text. Codes "bad-toml", "bad-config".
  static Result<Job> parse(std::string_view text, const std::string& origin);
  static Result<Job> load(const std::string& path);
  [[nodiscard]] std::string canonical_text() const;
  [[nodiscard]] JobHash hash() const;  // XXH3-64 of canonical_text()
  bool operator==(const Job&) const = default;
};

}  // namespace gossipd
