// models/job/training_spec.h - how a job descends: [optimizer], [schedule] and [training]. Plain
// values; any thread.
#pragma once

#include "core/base/types.h"
#include "models/job/canonical_text.h"

namespace gossipd {

class TomlTable;

inline constexpr std::size_t job_milestones_max = 64;
inline constexpr Samples job_budget_samples_max = Samples{1} << 60;

struct OptimizerSpec {
  enum class Kind { sgd, adamw };
  Kind kind = Kind::sgd;
  double learning_rate = 0.05;  // the schedule's peak; default of adamw 0.001
  double weight_decay = 0;      // sgd: added to the gradient; adamw: decoupled from it
  // sgd
  double momentum = 0.9;
  bool nesterov = false;
  // adamw
  double beta1 = 0.9;     // how slowly the mean of the gradients moves
  double beta2 = 0.999;   // and that of their squares
  double epsilon = 1e-8;  // added to the root of the latter
  bool operator==(const OptimizerSpec&) const = default;
};

// All positions are samples that the whole cluster has trained on.
struct ScheduleSpec {
  enum class Kind { constant, cosine, step, linear };
  Kind kind = Kind::cosine;
  Samples warmup_samples = 0;       // linear up to the peak
  double final_fraction = 0;        // cosine, linear: learning rate at the budget's end / peak
  std::vector<Samples> milestones;  // step: at each the learning rate is multiplied by gamma
  double gamma = 0.1;
  bool operator==(const ScheduleSpec&) const = default;
};

struct TrainingSpec {
  enum class Precision { fp32, tf32, bf16, fp16 };
  // the gradient's norm, over all parameters, is cut to this; 0: never
  double clip_norm = 0;
  // at most so many samples are on the device at once, their gradients added up; 0: the batch whole
  std::uint32_t micro_batch = 0;
  // tf32: products of matrices and convolutions, on CUDA; elsewhere as fp32
  // bf16, fp16: forward and loss under autocast; parameters and optimiser stay fp32
  Precision precision = Precision::fp32;
  bool deterministic = false;  // an operation without a deterministic kernel is an error
  // the job ends after so many evaluations of one node without a better one; 0: never early
  std::uint32_t patience = 0;
  bool operator==(const TrainingSpec&) const = default;
};

[[nodiscard]] OptimizerSpec parse_optimizer(TomlTable table);
[[nodiscard]] ScheduleSpec parse_schedule(TomlTable table, Samples budget_samples);
[[nodiscard]] TrainingSpec parse_training(TomlTable table);
void write(CanonicalText&, const OptimizerSpec&);
void write(CanonicalText&, const ScheduleSpec&);
// only what differs from the defaults: older jobs keep their hash
void write(CanonicalText&, const TrainingSpec&);

}  // namespace gossipd
