// models/checkpoint/checkpoint.h - a node's training state on disk, as a safetensors file that
// Python loads.
//
// Tensors: each segment of the schema under its own name, what the optimiser knows of it as
// "momentum.NAME" and, for AdamW, "variance.NAME" (models/files/state_names.h tells them from the
// model's own); the optimiser's steps are the metadata's "optimizer_steps" (missing in old files:
// 0), fp16's scale of the loss "loss_scale" and "loss_scale_good_steps" (missing in old files: it
// starts anew). Its mode is 0600, as a model says much about the data that it was trained on.
// Writing is temporary file → fsync → current becomes NAME.previous.safetensors → rename → fsync of
// the directory, so at every moment one whole checkpoint lies there. The checksum is XXH3-64 over
// the whole file with its own 16 digits read as zeros. Torch-free; any thread, one writer per path.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "core/model/schema.h"
#include "models/descent/optimizer.h"
#include "models/files/safetensors.h"

namespace gossipd {

// A number as metadata have it: the shortest text that reads back as the same value.
[[nodiscard]] std::string number_text(double value);

// Everything that makes `restore, then k steps` equal to `k more steps`, bit for bit.
struct Checkpoint {
  std::vector<float> model;  // P floats, in the schema's order
  OptimizerState optimizer;
  Step step = 0;
  Samples samples = 0;         // the node's own counter
  Samples others_samples = 0;  // what it knew of the rest of the cluster
  // samples drawn from its shard since the job began, or the place in a set that nodes divide
  Samples data_position = 0;
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 1;
  double loss = 0;  // smoothed
  JobHash job{};
  // more words: node, cluster, accuracy, best_accuracy, …; keys of the fields above are ours
  Metadata metadata;
};

// Why a file may not be written where it would lie; nothing: it may.
using WriteRefusal = std::function<std::optional<Error>()>;

// The parent directory must exist. `more`: metadata beside the checkpoint's own. `refuses`: asked
// at the beginning, and again before anything takes the place of what lies there. Returns the bytes
// written. Codes "no-space", "io-error", "state-gone" (there is no such directory), "not-finite" (a
// model with NaN or infinity never replaces a good file).
[[nodiscard]] Result<std::uint64_t> write_checkpoint(const std::filesystem::path& path,
                                                     const Schema& schema,
                                                     const Checkpoint& checkpoint,
                                                     const Metadata& more = {},
                                                     const WriteRefusal& refuses = {});

struct LoadedCheckpoint {
  Checkpoint checkpoint;
  std::filesystem::path path;  // the file that it came from
  // not empty: why the current file was refused and the previous one used
  std::string fallback_reason;
};

// A corrupt current file is set aside as NAME.corrupt.safetensors, so that the next write does not
// make it the previous one. Codes "not-found" (neither file), "bad-checkpoint" (neither is whole),
// "foreign-checkpoint" (whole, but of another schema or, if `job` is given, of another job).
[[nodiscard]] Result<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& path,
                                                       const Schema& schema,
                                                       std::optional<JobHash> job = std::nullopt);

// What a checkpoint says about itself, checked against its checksum, without needing the schema.
[[nodiscard]] Result<Metadata> read_checkpoint_metadata(const std::filesystem::path& path);

[[nodiscard]] std::filesystem::path previous_checkpoint_path(const std::filesystem::path& path);

}  // namespace gossipd
