#include "models/job/training_spec.h"

#include <algorithm>

#include "models/job/toml_reader.h"

namespace gossipd {

namespace {

constexpr std::int64_t samples_max = static_cast<std::int64_t>(job_budget_samples_max);

std::string_view name_of(OptimizerSpec::Kind kind) {
  return kind == OptimizerSpec::Kind::adamw ? "adamw" : "sgd";
}

std::string_view name_of(ScheduleSpec::Kind kind) {
  switch (kind) {
    case ScheduleSpec::Kind::constant: return "constant";
    case ScheduleSpec::Kind::cosine: return "cosine";
    case ScheduleSpec::Kind::step: return "step";
    case ScheduleSpec::Kind::linear: return "linear";
  }
  return "";
}

}  // namespace

OptimizerSpec parse_optimizer(TomlTable table) {
  using Kind = OptimizerSpec::Kind;
  OptimizerSpec optimizer;
  optimizer.kind = table.get_enum("kind", Kind::sgd, {{"sgd", Kind::sgd}, {"adamw", Kind::adamw}});
  const auto refuse_keys_of = [&](Kind other, std::initializer_list<std::string_view> keys) {
    const std::string name(name_of(other));
    for (const std::string_view key : keys)
      if (table.has(key))
        table.refuse(key, "belongs to " + name + "; take it out, or set kind = \"" + name + "\"");
  };
  const bool is_adamw = optimizer.kind == Kind::adamw;
  optimizer.learning_rate =
      table.get_double("learning_rate", is_adamw ? 0.001 : optimizer.learning_rate, 0, 1000);
  optimizer.weight_decay = table.get_double("weight_decay", optimizer.weight_decay, 0, 1);
  if (is_adamw) {
    optimizer.beta1 = table.get_double("beta1", optimizer.beta1, 0, 0.9999);
    optimizer.beta2 = table.get_double("beta2", optimizer.beta2, 0, 0.999999);
    optimizer.epsilon = table.get_double("epsilon", optimizer.epsilon, 1e-12, 1);
    refuse_keys_of(Kind::sgd, {"momentum", "nesterov"});
    return optimizer;
  }
  optimizer.momentum = table.get_double("momentum", optimizer.momentum, 0, 0.9999);
  optimizer.nesterov = table.get_bool("nesterov", optimizer.nesterov);
  if (optimizer.nesterov && optimizer.momentum == 0)
    table.refuse("nesterov", "needs momentum; set momentum = 0.9 or nesterov = false");
  refuse_keys_of(Kind::adamw, {"beta1", "beta2", "epsilon"});
  return optimizer;
}

ScheduleSpec parse_schedule(TomlTable table, Samples budget_samples) {
  using Kind = ScheduleSpec::Kind;
  ScheduleSpec schedule;
  schedule.kind = table.get_enum("kind", Kind::cosine,
                                 {{"cosine", Kind::cosine},
                                  {"linear", Kind::linear},
                                  {"step", Kind::step},
                                  {"constant", Kind::constant}});
  schedule.warmup_samples =
      static_cast<Samples>(table.get_integer("warmup_samples", 0, 0, samples_max));
  if (schedule.warmup_samples >= budget_samples && schedule.warmup_samples > 0)
    table.refuse("warmup_samples",
                 "must be less than budget_samples (" + std::to_string(budget_samples) + ")");
  if (schedule.kind == Kind::cosine || schedule.kind == Kind::linear)
    schedule.final_fraction = table.get_double("final_fraction", 0, 0, 1);
  if (schedule.kind == Kind::step) {
    schedule.gamma = table.get_double("gamma", schedule.gamma, 0, 1);
    for (const std::int64_t at :
         table.get_integers("milestones", {}, 1, samples_max, job_milestones_max))
      schedule.milestones.push_back(static_cast<Samples>(at));
    if (!std::is_sorted(schedule.milestones.begin(), schedule.milestones.end()))
      table.refuse("milestones", "must rise; sort them");
    if (schedule.milestones.empty())
      table.refuse(
          "milestones",
          "is missing; write milestones = [400000, 500000], in samples of the whole cluster");
  }
  return schedule;
}

TrainingSpec parse_training(TomlTable table) {
  using Precision = TrainingSpec::Precision;
  TrainingSpec training;
  training.clip_norm = table.get_double("clip_norm", 0, 0, 1e9);
  training.micro_batch = static_cast<std::uint32_t>(table.get_integer("micro_batch", 0, 0, 65536));
  training.precision = table.get_enum("precision", Precision::fp32,
                                      {{"fp32", Precision::fp32},
                                       {"tf32", Precision::tf32},
                                       {"bf16", Precision::bf16},
                                       {"fp16", Precision::fp16}});
  training.deterministic = table.get_bool("deterministic", false);
  training.patience = static_cast<std::uint32_t>(table.get_integer("patience", 0, 0, 1'000'000));
  return training;
}

void write(CanonicalText& out, const OptimizerSpec& optimizer) {
  out.table("optimizer");
  out.line("kind", name_of(optimizer.kind));
  out.line("learning_rate", optimizer.learning_rate);
  if (optimizer.kind == OptimizerSpec::Kind::sgd) {
    out.line("momentum", optimizer.momentum);
    out.line("weight_decay", optimizer.weight_decay);
    out.line("nesterov", optimizer.nesterov);
  } else {
    out.line("beta1", optimizer.beta1);
    out.line("beta2", optimizer.beta2);
    out.line("epsilon", optimizer.epsilon);
    out.line("weight_decay", optimizer.weight_decay);
  }
}

void write(CanonicalText& out, const ScheduleSpec& schedule) {
  using Kind = ScheduleSpec::Kind;
  out.table("schedule");
  out.line("kind", name_of(schedule.kind));
  out.line("warmup_samples", schedule.warmup_samples);
  if (schedule.kind == Kind::cosine || schedule.kind == Kind::linear)
    out.line("final_fraction", schedule.final_fraction);
  if (schedule.kind == Kind::step) {
    out.line("milestones", schedule.milestones);
    out.line("gamma", schedule.gamma);
  }
}

void write(CanonicalText& out, const TrainingSpec& training) {
  const TrainingSpec usual;
  if (training == usual) return;
  out.table("training");
  if (training.clip_norm != usual.clip_norm) out.line("clip_norm", training.clip_norm);
  if (training.micro_batch != usual.micro_batch)
    out.line("micro_batch", std::uint64_t{training.micro_batch});
  if (training.precision == TrainingSpec::Precision::tf32)
    out.line("precision", std::string_view("tf32"));
  if (training.precision == TrainingSpec::Precision::bf16)
    out.line("precision", std::string_view("bf16"));
  if (training.precision == TrainingSpec::Precision::fp16)
    out.line("precision", std::string_view("fp16"));
  if (training.deterministic) out.line("deterministic", true);
  if (training.patience != usual.patience) out.line("patience", std::uint64_t{training.patience});
}

}  // namespace gossipd
