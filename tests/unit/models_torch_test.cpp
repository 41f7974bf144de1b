// LibTorch's side of models/: networks as flat vectors, the optimiser, and real training.
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "models/data/data_order.h"
#include "models/data/idx.h"
#include "models/descent/optimizer.h"
#include "models/devices/runtime.h"
#include "models/networks/flat_model.h"
#include "models/training/torch_engine.h"
#include "models_bars.h"
#include "models_test_support.h"

using namespace gossipd;
using test::Desk;
using test::parse_job;
using test::TemporaryDirectory;

namespace {

std::span<float> floats_of(torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

std::vector<float> model_of(FlatModel& flat) {
  std::vector<float> out(flat.schema().floats());
  flat.copy_to(out);
  return out;
}

const NetworkPorts image_ports{{1, 28, 28}, 10};
const std::string small_cnn = "[model]\nkind = 'cnn'\nwidth = 8\nhidden = [32]\n";
const std::string sgd = "[optimizer]\nlearning_rate = 0.05\nweight_decay = 1e-4\n";
const std::string adamw =
    "[optimizer]\nkind = 'adamw'\nlearning_rate = 0.002\nweight_decay = 0.05\n";

// `steps` steps of batch 32 with the job's own network.
Job fashion_job(int steps, const std::string& model = small_cnn,
                const std::string& optimizer = sgd) {
  return parse_job("name = 'fashion'\nseed = 5\nbudget_samples = " + std::to_string(32 * steps) +
                   "\n" + model + "[data]\nmean = 0.286\ndeviation = 0.353\n" + optimizer +
                   "[schedule]\nwarmup_samples = " + std::to_string(8 * steps) + "\n");
}

std::unique_ptr<GradientEngine> fashion_engine(const Job& job) {
  static const auto train =
      load_data(job.data, {.directory = fashion_mnist_directory, .held_out = false}).value().train;
  auto engine = make_torch_engine(
      job, "cpu", 1, BatchSource(train, DataOrder(job.seed, train->count(), {})), nullptr);
  REQUIRE_MESSAGE(engine, (engine ? "" : engine.error().text));
  return std::move(*engine);
}

std::unique_ptr<Trainer> fashion_trainer(const Job& job, DataOrder::Shard shard = {}) {
  static const bool prepared = (prepare_training_process(1), true);
  TrainerOptions options;
  options.data_dir = fashion_mnist_directory;
  options.device = "cpu";
  options.nice = 0;
  options.shard_index = shard.index;
  options.shard_count = shard.count;
  REQUIRE(prepared);
  auto trainer = Trainer::create(job, options);
  REQUIRE_MESSAGE(trainer, (trainer ? "" : trainer.error().text));
  return std::move(*trainer);
}

// Resident memory that belongs to no file.
double anonymous_megabytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("RssAnon:")) return std::stod(line.substr(8)) / 1024;
  return 0;
}

struct Outcome {
  std::vector<float> model;
  Evaluation evaluation;
};

Outcome train_to_the_end(Trainer& trainer) {
  Desk desk;
  trainer.start(desk.callbacks());
  Outcome out{std::vector<float>(trainer.schema().floats()), desk.evaluation()};
  trainer.stop();
  trainer.copy_model(out.model);
  return out;
}

// With everything that a schema tells apart: parameters, statistics, a counter.
struct NormNetworkImpl : torch::nn::Module {
  NormNetworkImpl()
      : linear(register_module("linear", torch::nn::Linear(3, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  torch::Tensor forward(torch::Tensor x) { return norm(linear(x)); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};

// How far `steps` steps of ours end from those of `Reference`, a torch::optim optimiser, relative
// to the parameters' norm.
template <typename Reference, typename Options>
double distance_to(const OptimizerSpec& spec, const Options& options, int steps) {
  const ModelSpec model{.kind = ModelSpec::Kind::mlp, .hidden = {24}};
  const auto ours = make_network(model, image_ports, 3);
  const auto theirs = make_network(model, image_ports, 3);
  FlatModel flat(ours->tensors());
  FlatModel reference(theirs->tensors());
  Reference optimizer(theirs->parameters(), options);
  OptimizerState state;
  torch::manual_seed(4);
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor images = torch::randn({16, 1, 28, 28});
    const torch::Tensor labels = torch::randint(0, 10, {16}, torch::kInt64);
    torch::nn::functional::cross_entropy(ours->forward(images), labels).backward();
    optimizer_step(spec, spec.learning_rate, floats_of(flat.trained()), state,
                   floats_of(flat.gradient()));
    reference.gradient().zero_();
    torch::nn::functional::cross_entropy(theirs->forward(images), labels).backward();
    optimizer.step();
  }
  REQUIRE((flat.gradient() == 0).all().item<bool>());
  return ((flat.trained() - reference.trained()).norm() / reference.trained().norm())
      .item<double>();
}

// Notes how nice the loader threads are that read it.
class Watched : public test::Bars {
 public:
  using Bars::Bars;
  void write(std::size_t index, const Variation* variation, const Batch& batch,
             std::size_t at) const override {
    Bars::write(index, variation, batch, at);
    if (std::this_thread::get_id() == maker_) return;
    const std::lock_guard lock(mutex_);
    nice_.insert(getpriority(PRIO_PROCESS, 0));  // this thread's
  }
  [[nodiscard]] std::set<int> nice() const {
    const std::lock_guard lock(mutex_);
    return nice_;
  }

 private:
  const std::thread::id maker_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  mutable std::set<int> nice_;
};

}  // namespace

TEST_CASE("A module's schema tells parameters, statistics and counters apart") {
  NormNetworkImpl module;
  const FlatModel flat(tensors_of(module));
  std::vector<std::string> got;
  for (const Segment& segment : flat.schema().segments())
    got.push_back(segment.name + " " + std::to_string(static_cast<int>(segment.kind)));
  const std::vector<std::string> want{"linear.weight 0",
                                      "linear.bias 0",
                                      "norm.weight 0",
                                      "norm.bias 0",
                                      "norm.running_mean 1",
                                      "norm.running_var 1",
                                      "norm.num_batches_tracked 2"};
  CHECK(got == want);
}

TEST_CASE(
    "A module trains inside its flat vector: gradients, statistics and counters arrive there") {
  torch::manual_seed(1);
  NormNetworkImpl module;
  FlatModel flat(tensors_of(module));
  const auto before = model_of(flat);
  module.forward(torch::randn({8, 3})).pow(2).sum().backward();
  CHECK(flat.gradient().abs().sum().item<float>() > 0);
  CHECK(flat.gradient().data_ptr<float>() == module.linear->weight.grad().data_ptr<float>());
  const auto after = model_of(flat);
  const auto& segments = flat.schema().segments();
  CHECK(after[segments[4].offset] != before[segments[4].offset]);
  CHECK(after[segments[6].offset] == 1);
}

TEST_CASE("A flat vector taken in changes the module, counters included") {
  NormNetworkImpl module;
  FlatModel flat(tensors_of(module));
  std::vector<float> values(flat.schema().floats());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  flat.copy_from(values);
  CHECK(module.linear->weight[3][2].item<float>() == 11);
  CHECK(module.norm->num_batches_tracked.item<std::int64_t>() ==
        static_cast<std::int64_t>(values.size() - 1));
  flat.add(values);
  CHECK(module.linear->weight[3][2].item<float>() == 22);
  CHECK(model_of(flat)[1] == 2);
}

#if !defined(__SANITIZE_ADDRESS__)  // which keeps what is freed
TEST_CASE("A trainer has given back what reading its data took beside the data") {
  fashion_trainer(fashion_job(1000));  // LibTorch's own memory has been taken
  return_free_memory();
  const double before = anonymous_megabytes();
  const auto trainer = fashion_trainer(fashion_job(1000));
  // Images and labels are 55 MB; reading a file takes it whole, inflated and copied.
  CHECK(anonymous_megabytes() - before < 70);
}
#endif

TEST_CASE("The initial model is a function of the seed") {
  const auto initial = [](std::uint64_t seed) {
    const auto network = make_network(
        ModelSpec{.kind = ModelSpec::Kind::cnn, .hidden = {16}, .width = 4}, image_ports, seed);
    FlatModel flat(network->tensors());
    return model_of(flat);
  };
  CHECK(initial(1) == initial(1));
  CHECK(initial(1) != initial(2));
}

TEST_CASE("Our descent follows torch::optim::SGD, with and without Nesterov") {
  for (const bool nesterov : {false, true}) {
    const OptimizerSpec spec{
        .learning_rate = 0.05, .weight_decay = 1e-3, .momentum = 0.9, .nesterov = nesterov};
    const auto options = torch::optim::SGDOptions(spec.learning_rate)
                             .momentum(spec.momentum)
                             .weight_decay(spec.weight_decay)
                             .nesterov(nesterov);
    // LibTorch fuses multiply and add where the CPU can, we never do: equal but for the last bits.
    CHECK(distance_to<torch::optim::SGD>(spec, options, 50) < 1e-6);
  }
}

TEST_CASE("Without momentum SGD is torch::optim::SGD's, and keeps nothing beside the model") {
  const OptimizerSpec spec{.learning_rate = 0.05, .weight_decay = 1e-3, .momentum = 0};
  const auto options = torch::optim::SGDOptions(spec.learning_rate).weight_decay(spec.weight_decay);
  CHECK(distance_to<torch::optim::SGD>(spec, options, 50) < 1e-6);

  std::vector<float> x{1, 2}, gradient{3, 4};
  OptimizerState state;
  optimizer_step(spec, 0.5, x, state, gradient);
  CHECK(state.momentum.empty());
  CHECK(gradient == std::vector<float>{0, 0});
  // What it kept until November 2026 is still read, and that of another model is not.
  CHECK(fits({.momentum = {1, 2}}, spec, 2));
  CHECK_FALSE(fits({.momentum = {1, 2, 3}}, spec, 2));
  CHECK_FALSE(fits({.momentum = {1, 2}, .variance = {1, 2}}, spec, 2));
}

TEST_CASE("Our descent follows torch::optim::AdamW") {
  const OptimizerSpec spec{.kind = OptimizerSpec::Kind::adamw,
                           .learning_rate = 2e-3,
                           .weight_decay = 0.1,
                           .beta1 = 0.8,
                           .beta2 = 0.98,
                           .epsilon = 1e-6};
  const auto options = torch::optim::AdamWOptions(spec.learning_rate)
                           .betas({spec.beta1, spec.beta2})
                           .eps(spec.epsilon)
                           .weight_decay(spec.weight_decay);
  CHECK(distance_to<torch::optim::AdamW>(spec, options, 20) < 1e-6);
}

TEST_CASE("Two runs with one seed are bit-identical, even when watched by evaluations") {
  const Job job = fashion_job(60);
  auto first = fashion_trainer(job);
  const Outcome want = train_to_the_end(*first);
  auto second = fashion_trainer(job);
  for (int i = 0; i < 3; ++i) second->request_evaluation();
  Desk desk;
  second->start(desk.callbacks());
  second->give({std::vector<float>(second->schema().floats()), false, 1, true});
  desk.snapshot();
  second->request_evaluation();
  while (desk.evaluation().step < 60) {
  }
  second->stop();
  std::vector<float> model(want.model.size());
  second->copy_model(model);
  CHECK(model == want.model);
}

TEST_CASE("Another shard is another run") {
  const Job job = fashion_job(5);
  auto first = fashion_trainer(job, {0, 3});
  auto second = fashion_trainer(job, {1, 3});
  CHECK(first->shard_samples() == 20000);
  CHECK(train_to_the_end(*first).model != train_to_the_end(*second).model);
}

TEST_CASE("An engine goes on from model and optimiser state bit for bit, while the batch changes") {
  constexpr std::array<std::uint32_t, 9> batches{32, 32, 8, 48, 0, 17, 64, 0, 5};
  constexpr std::size_t before = 4;
  for (const std::string& optimizer : {sgd, adamw}) {
    const Job job = fashion_job(60, small_cnn, optimizer);
    const auto train = [&](Engine& engine, std::size_t begin, std::size_t end) {
      for (std::size_t k = begin; k < end; ++k)
        engine.step(64 * k, 0.002 * static_cast<double>(k + 1), batches[k]);
      std::vector<float> model(engine.schema().floats());
      engine.copy_model(model);
      return model;
    };
    const auto whole = fashion_engine(job);
    const std::vector<float> model = train(*whole, 0, before);
    const OptimizerState state = whole->optimizer_state();
    const auto want = train(*whole, before, batches.size());
    const auto resumed = fashion_engine(job);
    resumed->replace_model(model);
    resumed->restore_optimizer(state);
    CHECK(train(*resumed, before, batches.size()) == want);
    CHECK(resumed->optimizer_state() == whole->optimizer_state());
    CHECK(state.steps == before);
    CHECK(state.variance.size() == (optimizer == adamw ? model.size() : 0));

    resumed->restore_optimizer({});
    resumed->replace_model(model);
    CHECK(train(*resumed, before, batches.size()) != want);
  }
}

TEST_CASE("An AdamW engine that starts its optimiser at zero again trains as a new one does") {
  const Job job = fashion_job(60, small_cnn, adamw);
  const auto model_after_a_step = [](Engine& engine) {
    engine.step(0, 0.002);
    std::vector<float> model(engine.schema().floats());
    engine.copy_model(model);
    return model;
  };
  const auto engine = fashion_engine(job);
  std::vector<float> initial(engine->schema().floats());
  engine->copy_model(initial);
  const auto want = model_after_a_step(*engine);
  engine->replace_model(initial);
  engine->restore_optimizer({});
  CHECK(model_after_a_step(*engine) == want);
}

TEST_CASE("Real training resumes from a checkpoint bit for bit, with either optimiser") {
  for (const std::string& optimizer : {sgd, adamw}) {
    const TemporaryDirectory directory;
    const Job job = fashion_job(60, small_cnn, optimizer);
    auto whole = fashion_trainer(job, {1, 3});
    const Outcome want = train_to_the_end(*whole);

    Desk desk;
    auto interrupted = fashion_trainer(job, {1, 3});
    auto callbacks = desk.callbacks();
    // on the training thread: the checkpoint is of the very next boundary
    callbacks.on_snapshot = [&](const Snapshot&) {
      interrupted->write_checkpoint(
          {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
    };
    interrupted->start(callbacks, true);
    interrupted->give({std::vector<float>(want.model.size()), false, 20, true});
    REQUIRE(desk.written());
    interrupted.reset();

    auto resumed = fashion_trainer(job, {1, 3});
    const auto loaded = load_checkpoint(directory / "m.safetensors", resumed->schema(), job.hash());
    REQUIRE(loaded);
    REQUIRE(loaded->checkpoint.step == 21);
    REQUIRE(!resumed->restore(loaded->checkpoint));
    const Outcome got = train_to_the_end(*resumed);
    CHECK(got.model == want.model);
    CHECK(got.evaluation.accuracy == want.evaluation.accuracy);
  }
}

TEST_CASE("The small cnn learns Fashion-MNIST within seconds") {
  auto trainer = fashion_trainer(fashion_job(400));
  CHECK(train_to_the_end(*trainer).evaluation.accuracy > 0.78);
}

TEST_CASE("The small cnn learns Fashion-MNIST with AdamW within seconds") {
  auto trainer = fashion_trainer(fashion_job(400, small_cnn, adamw));
  CHECK(train_to_the_end(*trainer).evaluation.accuracy > 0.78);
}

TEST_CASE("The mlp learns Fashion-MNIST within seconds") {
  auto trainer = fashion_trainer(fashion_job(400, "[model]\nkind = 'mlp'\nhidden = [64]\n"));
  CHECK(train_to_the_end(*trainer).evaluation.accuracy > 0.75);
}

TEST_CASE("A node without data is told what to put where") {
  TrainerOptions options;
  options.data_dir = "/nonexistent";
  const auto trainer = Trainer::create(fashion_job(1), options);
  REQUIRE(!trainer);
  CHECK(trainer.error().code == "no-data");
}

TEST_CASE("Loader threads are as nice as the thread that trains, not as the one that prepared it") {
  const Job job = test::bars_job(test::cnn, test::sgd);
  const auto set = std::make_shared<Watched>(job.data);
  auto engine = make_torch_engine(
      job, "cpu", 1, BatchSource(set, DataOrder(job.seed, set->count(), {}), 2), nullptr, "");
  REQUIRE(engine);
  std::thread([&] {
    (*engine)->prepare_thread(3);
    (*engine)->step(0, 0.05, 4);
  }).join();
  CHECK(set->nice() == std::set<int>{std::min(19, getpriority(PRIO_PROCESS, 0) + 3)});
}

TEST_CASE("A device that is not there is refused by its name") {
  for (const std::string& device : std::vector<std::string>{"cuda:99", "gpu", "cuda:x", "cuda:"}) {
    TrainerOptions options;
    options.data_dir = fashion_mnist_directory;
    options.device = device;
    const auto trainer = Trainer::create(fashion_job(1), options);
    REQUIRE(!trainer);
    CHECK(test::contains(trainer.error().text, "'" + device + "'"));
  }
}

TEST_CASE("A shard that does not exist is refused") {
  TrainerOptions options;
  options.data_dir = fashion_mnist_directory;
  options.shard_index = 3;
  options.shard_count = 3;
  CHECK(Trainer::create(fashion_job(1), options).error().code == "bad-config");
}
