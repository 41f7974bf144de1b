// models/job/job.h - what a cluster trains: model, data schema, optimiser, schedule, batch, budget,
// seed.
//
// A job is a TOML file of at most 64 KiB. What travels and is hashed is its canonical text: every
// default filled in, keys in a fixed order, so two files that mean the same have the same JobHash.
// Paths, devices, links and codecs are node policy and not part of it. A plain value; any thread.
#pragma once

#include "core/base/result.h"
#include "core/base/types.h"
#include "models/job/data_spec.h"
#include "models/job/model_spec.h"
#include "models/job/training_spec.h"

namespace gossipd {

inline constexpr std::size_t job_bytes_max = 64 * 1024;

struct Job {
  std::string name;
  std::uint64_t seed = 1;              // of the initial model and the data order; below 2^63
  std::uint32_t batch = 32;            // samples per step of one node
  Samples budget_samples = 0;          // of the whole cluster; the job ends when they are spent
  Samples evaluate_every_samples = 0;  // of the whole cluster; 0 = only at the end
  // the founder's path to the weights that the model begins with; empty: drawn from the seed
  std::string start_from;
  // what that file must hold; only its name is in the job's text beside it, for people
  JobFile start_content;
  ModelSpec model;
  DataSpec data;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  LossSpec loss;
  TrainingSpec training;

  // `origin` is what messages call the text. Codes "bad-toml", "bad-config".
  static Result<Job> parse(std::string_view text, const std::string& origin);
  // … of a file; those of a TorchScript model and of `start_from` are looked at as well, so that
  // their content is in the job.
  static Result<Job> load(const std::string& path);
  [[nodiscard]] std::string canonical_text() const;
  [[nodiscard]] JobHash hash() const;  // XXH3-64 of canonical_text()
  bool operator==(const Job&) const = default;
};

// Of the model, for each sample or token: one for each class, or one for each float of a target.
[[nodiscard]] std::int64_t outputs_of(const Job&);

}  // namespace gossipd
