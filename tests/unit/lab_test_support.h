// tests/unit/lab_test_support.h - a toy problem for the lab's rows: noisy quadratics that differ
// from machine to machine.
#pragma once

#include <cmath>

#include "core/base/random.h"
#include "tools/lab/references/registry.h"

namespace gossipd::lab {

// ½·Σ h_p (x_p − x*_p)² / P, x* drawn per machine around one optimum, gradients with noise that a
// larger batch averages out. With a statistic, as of a batch norm, which each batch draws to the
// machine's number.
class ToyEngine : public GradientEngine {
 public:
  static constexpr std::size_t rows = 12, columns = 16, floats = rows * columns + columns;

  ToyEngine(std::size_t machine, std::size_t machines, bool statistic = false) : machine_(machine) {
    std::vector<Segment> segments = {
        {"weight", {rows, columns}, 0, rows * columns, SegmentKind::parameter},
        {"bias", {columns}, rows * columns, columns, SegmentKind::parameter}};
    if (statistic) segments.push_back({"mean", {1}, floats, 1, SegmentKind::statistic});
    schema_ = Schema::build(std::move(segments)).value();
    const double turn =
        2 * 3.14159265358979 * static_cast<double>(machine) / static_cast<double>(machines);
    for (std::size_t p = 0; p < floats; ++p)  // the machines' offsets sum to zero
      own_optimum_.push_back(
          optimum(p) + (machines > 1
                            ? static_cast<float>(0.1 * std::cos(turn + static_cast<double>(p)))
                            : 0.0f));
  }
  static float optimum(std::size_t p) { return 1.0f + 0.5f * std::sin(static_cast<float>(p)); }
  static float curvature(std::size_t p) { return 0.5f + 0.5f * static_cast<float>(p % 7) / 6.0f; }
  // 0 at the common optimum of all machines, about 0.4 at the initial model.
  static double excess(std::span<const float> x) {
    double sum = 0;
    for (std::size_t p = 0; p < floats; ++p)
      sum += 0.5 * curvature(p) * (x[p] - optimum(p)) * (x[p] - optimum(p));
    return sum / floats;
  }

  double gradient(std::span<const float> x, Samples position, std::uint32_t batch,
                  std::span<float> out) override {
    Random random(1000 * machine_ + position);
    const float noise = 0.3f / std::sqrt(static_cast<float>(batch));
    double loss = 0.05;
    for (std::size_t p = 0; p < floats; ++p) {
      const float away = x[p] - own_optimum_[p];
      loss += 0.5 * curvature(p) * away * away / floats;
      out[p] = curvature(p) * away +
               noise * static_cast<float>(random.uniform() + random.uniform() - 1.0);
    }
    if (x.size() > floats)
      statistic_ = x[floats] + 0.1f * (static_cast<float>(machine_) - x[floats]);
    return loss;
  }

  const Schema& schema() const override { return schema_; }
  std::string device() const override { return "toy"; }
  Samples shard_samples() const override { return 1'000'000; }
  void prepare_thread(int) override {}
  double step(Samples, double, std::uint32_t) override { return 0; }
  void copy_model(std::span<float> out) override {
    std::ranges::fill(out, 0.25f);
    if (out.size() > floats) out[floats] = statistic_;
  }
  void add_to_model(std::span<const float>) override {}
  void replace_model(std::span<const float>) override {}
  OptimizerState optimizer_state() override { return {}; }
  void restore_optimizer(const OptimizerState&) override {}
  std::optional<Figures> evaluate(std::span<const float>, const std::atomic<bool>&) override {
    return std::nullopt;
  }

 private:
  std::size_t machine_;
  Schema schema_;
  std::vector<float> own_optimum_;
  float statistic_ = 0;  // after the last batch
};

class ToyRecorder : public Recorder {
 public:
  void trained(std::size_t machine, std::uint32_t batch, double loss, double age) override {
    samples_ += batch;
    steps.resize(std::max(steps.size(), machine + 1));
    ++steps[machine];
    ages.push_back(age);
    losses.push_back(loss);
  }
  Samples samples() const override { return samples_; }
  std::vector<std::uint64_t> steps;  // of each machine
  std::vector<double> ages, losses;

 private:
  Samples samples_ = 0;
};

struct ToyRun {
  std::vector<std::pair<std::string, std::string>> knobs;
  std::vector<double> speeds = {1, 1, 1, 1};
  WireSpec wire;
  MachineSpec machine;
  int threads = 1;
  std::uint64_t steps_each = 300;
  double learning_rate = 0.03;
  bool constant_rate = false;
  std::uint64_t warmup_steps = 0;  // of each
  OptimizerSpec::Kind optimizer = OptimizerSpec::Kind::sgd;
  double weight_decay = 0;
  bool statistic = false;
};

// A run that can be observed between two events.
class ToyLab {
 public:
  ToyLab(std::unique_ptr<Strategy> row, const ToyRun& run)
      : strategy(std::move(row)), world(machines_of(run), run.wire, 7, run.threads) {
    job.batch = 8;
    job.optimizer.kind = run.optimizer;
    job.optimizer.learning_rate = run.learning_rate;
    job.optimizer.weight_decay = run.weight_decay;
    job.schedule.kind =
        run.constant_rate ? ScheduleSpec::Kind::constant : ScheduleSpec::Kind::cosine;
    job.budget_samples = run.speeds.size() * run.steps_each * job.batch;
    job.schedule.warmup_samples = run.speeds.size() * run.warmup_steps * job.batch;
    recorder.budget = job.budget_samples;
    for (std::size_t i = 0; i < run.speeds.size(); ++i)
      engines.push_back(std::make_unique<ToyEngine>(i, run.speeds.size(), run.statistic));
    for (const auto& [key, value] : run.knobs) set(key, value);
    setup = std::make_unique<Setup>(Setup{job, world, recorder, engines, 3});
    strategy->start(*setup);
  }

  void set(const std::string& key, const std::string& value) {
    for (const Setting& setting : strategy->settings())
      if (setting.key == "strategy." + key) {
        const SettingRefused refused = setting.set(value);
        if (refused) throw std::runtime_error(key + ": " + *refused);
        return;
      }
    throw std::runtime_error("no knob " + key);
  }
  // False if the events ran out before the row finished.
  bool finish() {
    while (!strategy->finished())
      if (!world.advance()) return false;
    return true;
  }
  std::vector<float> model(std::size_t machine) {
    const auto model = strategy->model(machine);
    return {model.begin(), model.end()};
  }

  std::unique_ptr<Strategy> strategy;
  Job job;
  ToyRecorder recorder;
  std::vector<std::unique_ptr<GradientEngine>> engines;
  World world;  // after what its pool uses
  std::unique_ptr<Setup> setup;

 private:
  static std::vector<MachineSpec> machines_of(const ToyRun& run) {
    std::vector<MachineSpec> machines(run.speeds.size(), run.machine);
    for (std::size_t i = 0; i < machines.size(); ++i) machines[i].speed = run.speeds[i];
    return machines;
  }
};

using Knobs = std::vector<std::pair<std::string, std::string>>;

struct Case {
  std::string row;
  Knobs knobs;
};

inline std::unique_ptr<Strategy> make(const std::string& name) {
  for (const StrategyEntry& entry : reference_strategies())
    if (entry.name == name) return entry.make();
  throw std::runtime_error("no row " + name);
}

inline std::string name_of(const Case& one) {
  std::string name = one.row;
  for (const auto& [key, value] : one.knobs) name += " " + key + "=" + value;
  return name;
}

inline ToyRun with(const Knobs& knobs) {
  ToyRun run;
  run.knobs = knobs;
  return run;
}

}  // namespace gossipd::lab
