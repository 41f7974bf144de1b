// gossip-bench training: samples per second of gossipd's engine, against a bare LibTorch loop of
// the same network in the same run, and of each kind of data set against the engine's consumption.
//
// The bare loop has the whole set normalised in one tensor, picks batches by index and steps
// torch::optim::SGD. The engine reads through its loader, keeps the model in one flat vector and
// descends in one pass. The two take turns, so other load affects both. Figures are medians of the
// pairs' ratios of samples per second of wall time, and, with one thread only, per second of the
// training thread's processor time, which a busy machine does not spoil (loader threads do not
// count).
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "models/devices/runtime.h"
#include "models/networks/loss.h"
#include "models/training/torch_engine.h"
#include "tools/bench/commands.h"
#include "tools/bench/made_sets.h"
#include "tools/bench/median.h"
#include "tools/bench/thread_time.h"

namespace gossipd::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using torch::Tensor;

constexpr double learning_rate = 0.01;
constexpr std::size_t bare_samples_max = 2000;  // held in memory by the bare loop
constexpr std::uint64_t epoch_seed = 1;

struct Options {
  bool as_json = false;
  int pairs = 5;
  double seconds = 2;
  int threads = 1;
  int loader_threads = 1;
  std::string only;
};

struct Case {
  const char* set;    // of made_sets()
  const char* model;  // of the job, below [model]
  std::uint32_t batch;
};

const Case cases[] = {
    {"idx 1x28x28", "kind = 'cnn'\n", 32},
    {"cifar10, crop, flip", "kind = 'resnet20'\n", 32},
    {"images 500x375 to 64x64", "kind = 'resnet18'\n", 16},
    {"images 500x375 to 224x224", "kind = 'resnet18'\n", 8},
    {"images 224x224, kept", "kind = 'resnet18'\n", 8},
    {"tokens, length 1024", "kind = 'gpt'\ndim = 32\ndepth = 1\nheads = 2\n", 1},
    {"text, length 256", "kind = 'gpt'\ndim = 64\ndepth = 2\nheads = 4\n", 4},
    {"safetensors 3x32x32", "kind = 'mlp'\n", 32},
};

Job job_of(const Case& c) {
  auto job =
      Job::parse("name = 'bench'\nbatch = " + std::to_string(c.batch) +
                     "\nbudget_samples = 1_000_000_000\n[schedule]\nkind = 'constant'\n[model]\n" +
                     c.model + "[data]\n" + made_set(c.set).table,
                 c.set);
  if (!job) throw CLI::ValidationError(job.error().text);
  return *job;
}

Tensor room_for(const SampleShape& sample, std::size_t count) {
  std::vector<std::int64_t> shape = sample.shape;
  shape.insert(shape.begin(), static_cast<std::int64_t>(count));
  return torch::empty(
      shape, sample.element == SampleShape::Element::float32 ? torch::kFloat32 : torch::kInt64);
}

Batch::Values values_of(Tensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.numel());
  if (tensor.scalar_type() == torch::kFloat32) return std::span(tensor.data_ptr<float>(), count);
  return std::span(tensor.data_ptr<std::int64_t>(), count);
}

// The usual loop without gossipd.
class BareLoop {
 public:
  BareLoop(const Job& job, const DataSet& set)
      : batch_(job.batch),
        kind_(job.loss.kind),
        network_(make_network(job.model, {job.data.shape, outputs_of(job)}, job.seed)),
        optimizer_(network_->parameters(),
                   torch::optim::SGDOptions(learning_rate).momentum(job.optimizer.momentum)) {
    const std::size_t count = std::min(set.count(), bare_samples_max);
    inputs_ = room_for(set.input(), count);
    targets_ = room_for(set.target(), count);
    const Batch all{values_of(inputs_), values_of(targets_)};
    for (std::size_t i = 0; i < count; ++i) set.write(i, nullptr, all, i);
    network_->train(true);
  }

  void step() {
    const Tensor picked = torch::randint(inputs_.size(0), {batch_}, torch::kInt64);
    optimizer_.zero_grad();
    const Tensor loss =
        loss_of(kind_, *network_, network_->forward(inputs_.index_select(0, picked)),
                targets_.index_select(0, picked));
    loss.backward();
    optimizer_.step();
    loss_ = loss.item<double>();
  }

 private:
  const std::int64_t batch_;
  const LossSpec::Kind kind_;
  std::shared_ptr<Network> network_;
  torch::optim::SGD optimizer_;
  Tensor inputs_;
  Tensor targets_;
  double loss_ = 0;
};

class EngineLoop {
 public:
  EngineLoop(const Job& job, const std::shared_ptr<const DataSet>& set, const Options& options)
      : batch_(job.batch) {
    auto engine = make_torch_engine(
        job, "cpu", options.threads,
        BatchSource(set, DataOrder(epoch_seed, set->count(), {}), options.loader_threads), nullptr);
    if (!engine) throw CLI::ValidationError(engine.error().text);
    engine_ = std::move(*engine);
  }
  void step() { engine_->step(std::exchange(position_, position_ + batch_), learning_rate); }

 private:
  const std::uint32_t batch_;
  Samples position_ = 0;
  std::unique_ptr<GradientEngine> engine_;
};

struct Pace {
  double steps_per_second = 0;            // of wall time
  double steps_per_processor_second = 0;  // of this thread
};

// Runs for about `seconds`.
template <typename Loop>
Pace pace_of(Loop& loop, double seconds) {
  const auto began = Clock::now();
  const double worked_before = thread_cpu_seconds();
  for (int steps = 1;; ++steps) {
    loop.step();
    const double passed = std::chrono::duration<double>(Clock::now() - began).count();
    if (passed >= seconds) return {steps / passed, steps / (thread_cpu_seconds() - worked_before)};
  }
}

json measure(const Case& c, const Options& options) {
  const MadeSet& made = made_set(c.set);
  const TemporaryDirectory directory;
  made.make(directory.path());
  const Job job = job_of(c);
  auto sets = load_data(job.data, {.directory = directory.path().string(),
                                   .held_out = false,
                                   .image_cache_bytes = made.cache_bytes});
  if (!sets) throw CLI::ValidationError(sets.error().text);

  BareLoop bare(job, *sets->train);
  EngineLoop engine(job, sets->train, options);
  for (int i = 0; i < 3; ++i) bare.step(), engine.step();
  std::vector<double> ratios, processor_ratios, engines, bares;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const bool engine_first = pair % 2 == 0;
    Pace of_engine = engine_first ? pace_of(engine, options.seconds) : Pace{};
    const Pace of_bare = pace_of(bare, options.seconds);
    if (!engine_first) of_engine = pace_of(engine, options.seconds);
    engines.push_back(of_engine.steps_per_second);
    bares.push_back(of_bare.steps_per_second);
    ratios.push_back(of_engine.steps_per_second / of_bare.steps_per_second);
    processor_ratios.push_back(of_engine.steps_per_processor_second /
                               of_bare.steps_per_processor_second);
  }
  const double consumed = median(engines) * c.batch;
  const double loaded =
      samples_per_second(sets->train, {c.batch, options.loader_threads, options.seconds});
  const auto [least, most] = std::ranges::minmax(ratios);
  return {{"data", c.set},
          {"model", std::string(name_of(job.model.kind))},
          {"batch", c.batch},
          {"samples_per_second", consumed},
          {"bare_samples_per_second", median(bares) * c.batch},
          {"ratio_median", median(ratios)},
          {"ratio_min", least},
          {"ratio_max", most},
          {"processor_ratio_median", median(processor_ratios)},
          {"loader_samples_per_second", loaded},
          {"loader_ratio", loaded / consumed}};
}

void run(const Options& options) {
  prepare_training_process(options.threads);
  prepare_training_thread(options.threads, 0);
  json rows = json::array();
  if (!options.as_json)
    std::printf("%-28s %-9s %5s %10s %10s %6s %15s %9s %10s %6s\n", "DATA", "MODEL", "BATCH",
                "SAMPLES/S", "BARE", "RATIO", "MIN...MAX", "BY CPU", "LOADER/S", "RATIO");
  for (const Case& c : cases) {
    if (std::string_view(c.set).find(options.only) == std::string_view::npos) continue;
    rows.push_back(measure(c, options));
    if (options.as_json) continue;
    const json& r = rows.back();
    const auto number = [&r](const char* key) { return r[key].get<double>(); };
    std::printf("%-28s %-9s %5u %10.1f %10.1f %6.3f   %.3f...%.3f %9.3f %10.0f %6.1f\n", c.set,
                r["model"].get<std::string>().c_str(), c.batch, number("samples_per_second"),
                number("bare_samples_per_second"), number("ratio_median"), number("ratio_min"),
                number("ratio_max"), number("processor_ratio_median"),
                number("loader_samples_per_second"), number("loader_ratio"));
    std::fflush(stdout);
  }
  if (options.as_json)
    std::printf("%s\n", json{{"threads", options.threads},
                             {"loader_threads", options.loader_threads},
                             {"aims", {{"ratio", 0.95}, {"loader_ratio", 1.2}}},
                             {"rows", rows}}
                            .dump(2)
                            .c_str());
}

}  // namespace

void add_training_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("training",
                                         "the engine against a bare LibTorch loop, and each loader "
                                         "against the engine (aims: 0.95 and 1.2)");
  command->add_flag("--json", options->as_json, "as JSON");
  command->add_option("--pairs", options->pairs, "pairs of measurements")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  command->add_option("--seconds", options->seconds, "of each measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  command->add_option("--threads", options->threads, "of tensor arithmetic")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--loader-threads", options->loader_threads, "as trainer.loader_threads")
      ->capture_default_str()
      ->check(CLI::Range(1, prefetch_threads_max));
  command->add_option("--only", options->only, "rows whose data's name contains this");
  command->callback([options] { run(*options); });
}

}  // namespace gossipd::bench
