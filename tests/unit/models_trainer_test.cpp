// The training loop over a toy engine: no tensor library, so ThreadSanitizer can watch it.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "models_test_support.h"

using namespace gossipd;
using test::Desk;
using test::parse_job;
using test::TemporaryDirectory;

namespace {

struct ToyScript {
  Step nan_at = std::numeric_limits<Step>::max();
  Step throw_at = std::numeric_limits<Step>::max();
  Step no_memory_at = std::numeric_limits<Step>::max();
};

// Gradient: the position in the data, so that a skipped or repeated batch shows in the model.
class ToyEngine : public Engine {
 public:
  explicit ToyEngine(ToyScript script) : script_(script) {
    schema_ = *Schema::build({{"w", {3}, 0, 3, SegmentKind::parameter}});
  }
  const Schema& schema() const override { return schema_; }
  std::string device() const override { return "toy"; }
  Samples shard_samples() const override { return 100; }
  void prepare_thread(int) override {}
  double step(Samples position, double learning_rate, std::uint32_t batch) override {
    if (steps_ == script_.throw_at) throw std::runtime_error("the toy broke");
    if (steps_ == script_.no_memory_at) throw std::bad_alloc();
    for (std::size_t i = 0; i < 3; ++i) {
      float& velocity = optimizer_.momentum[i];
      velocity = 0.9f * velocity + static_cast<float>(position % 17) + 0.1f * model_[i] +
                 0.01f * static_cast<float>(batch);
      model_[i] -= static_cast<float>(learning_rate) * velocity;
    }
    ++optimizer_.steps;
    return steps_++ == script_.nan_at ? std::numeric_limits<double>::quiet_NaN()
                                      : 1.0 + static_cast<double>(position % 5);
  }
  void copy_model(std::span<float> out) override { std::ranges::copy(model_, out.begin()); }
  void add_to_model(std::span<const float> values) override {
    for (std::size_t i = 0; i < 3; ++i) model_[i] += values[i];
  }
  void replace_model(std::span<const float> values) override {
    std::ranges::copy(values, model_.begin());
  }
  OptimizerState optimizer_state() override { return optimizer_; }
  void restore_optimizer(const OptimizerState& state) override {
    optimizer_ = state;
    optimizer_.momentum.resize(3);
  }
  std::optional<Figures> evaluate(std::span<const float> model, const std::atomic<bool>&) override {
    return Figures{.loss = model[0], .accuracy = model[1]};
  }

 private:
  ToyScript script_;
  Schema schema_;
  std::vector<float> model_ = {1, 2, 3};
  OptimizerState optimizer_{.momentum = {0, 0, 0}};
  Step steps_ = 0;
};

Job toy_job(const std::string& more = "", Samples budget = Samples{1} << 50) {
  return parse_job("name = 'toy'\nbatch = 10\nbudget_samples = " + std::to_string(budget) + "\n" +
                   more);
}

std::unique_ptr<Trainer> toy_trainer(const Job& job, ToyScript script = {},
                                     TrainerOptions options = {}) {
  return Trainer::with_engine(job, options, std::make_unique<ToyEngine>(script));
}

Update resting(std::vector<float> values, bool replace = false) {
  return {std::move(values), replace, 1, false};
}

const std::string still = "[optimizer]\nlearning_rate = 0\n";

}  // namespace

TEST_CASE("A held trainer makes no step before it has been given a model") {
  Desk desk;
  auto trainer = toy_trainer(toy_job());
  trainer->start(desk.callbacks(), true);
  trainer->give(resting({7, 8, 9}, true));
  const Snapshot snapshot = desk.snapshot();
  CHECK(snapshot.step == 0);
  CHECK(snapshot.model == std::vector<float>{7, 8, 9});
}

TEST_CASE("An update is applied exactly once, and the snapshot has it in") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(still));
  trainer->start(desk.callbacks());
  trainer->give({{0, 0, 0}, false, 5, true});
  CHECK(desk.snapshot().model == std::vector<float>{1, 2, 3});
  trainer->give({{10, 20, 30}, false, 5, true});
  CHECK(desk.snapshot().model == std::vector<float>{11, 22, 33});
  trainer->give({{0, 0, 0}, false, 5, true});
  CHECK(desk.snapshot().model == std::vector<float>{11, 22, 33});
}

TEST_CASE("A snapshot comes at the step that was asked for, or once it can") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(still));
  trainer->start(desk.callbacks(), true);
  trainer->give({{0, 0, 0}, false, 5, true});
  const Snapshot first = desk.snapshot();
  CHECK(first.step == 5);
  CHECK(first.samples == 50);
  CHECK(first.batch == 10);
  trainer->give({{0, 0, 0}, false, 1'000'000, true});  // it steps on meanwhile
  CHECK(desk.snapshot().step == 1'000'000);
}

TEST_CASE("A snapshot that is asked back comes at the next step, with the update in") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(still));
  trainer->start(desk.callbacks(), true);
  trainer->recall();  // there is nothing to give back yet
  constexpr Step never = Step{1} << 60;
  trainer->give({{10, 20, 30}, false, never, true});
  trainer->recall();
  const Snapshot first = desk.snapshot();
  CHECK(first.step < never);
  CHECK(first.model == std::vector<float>{11, 22, 33});
  trainer->recall();  // it has been given back
  trainer->give({{0, 0, 0}, false, 5, true});
  CHECK(desk.snapshot().step <= first.step + never / 2);
}

TEST_CASE(
    "A batch and a rate given with an update hold from the next step on, and the snapshot says "
    "so") {
  Desk desk;
  auto trainer =
      toy_trainer(toy_job("[optimizer]\nlearning_rate = 0.25\n[schedule]\nkind = 'constant'\n"));
  trainer->start(desk.callbacks(), true);
  Update update{{0, 0, 0}, false, 4, true};
  update.batch = 25;
  update.rate_scale = 2.5;
  trainer->give(update);
  const Snapshot first = desk.snapshot();
  CHECK(first.step == 4);
  CHECK(first.samples == 4 * 25);
  CHECK(first.batch == 25);
  CHECK(first.job_batch == 10);
  CHECK(first.learning_rate == doctest::Approx(0.625));
  CHECK(first.learning_rate_peak == doctest::Approx(0.625));
  Desk still_desk;
  auto resting_trainer = toy_trainer(toy_job(still));
  resting_trainer->start(still_desk.callbacks(), true);
  resting_trainer->give({{0, 0, 0}, false, 3, true, 25, 1.0});
  const Snapshot larger = still_desk.snapshot();
  CHECK(larger.samples == 3 * 25);
  resting_trainer->give(resting({0, 0, 0}));  // no batch named: the job's again
  CHECK(still_desk.snapshot().batch == 10);
}

TEST_CASE(
    "A trainer that was stopped in the middle of larger batches goes on with the same samples") {
  const TemporaryDirectory directory;
  const Job job = toy_job("", 70);  // 25 + 25 + 25 samples spend it
  const auto run = [&](Samples first_part) {
    Desk desk;
    auto trainer = toy_trainer(first_part > 0 ? toy_job("", first_part) : job);
    trainer->start(desk.callbacks(), true);
    Update update{{0, 0, 0}, false, 100, true, 25, 1.0};
    trainer->give(std::move(update));
    const Snapshot end = desk.snapshot();
    trainer->stop();
    CHECK(trainer->status().data_position == end.samples);
    return end;
  };
  const Snapshot whole = run(0);
  CHECK(whole.samples == 75);
  CHECK(whole.step == 3);
  CHECK(run(30).samples == 50);
}

TEST_CASE("A trainer that is told not to train answers at once and does not step") {
  Desk desk;
  auto trainer = toy_trainer(toy_job());
  trainer->start(desk.callbacks());
  trainer->give(resting({0, 0, 0}));
  const Snapshot first = desk.snapshot();
  trainer->give(resting({1, 0, 0}));
  const Snapshot second = desk.snapshot();
  CHECK(second.step == first.step);
  CHECK(second.model[0] == first.model[0] + 1);
  CHECK(trainer->status().state == TrainerState::holding);
}

TEST_CASE("A replaced model starts with its optimiser at zero") {
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = toy_trainer(toy_job());
  trainer->start(desk.callbacks());
  trainer->give({{0, 0, 0}, false, 5, true});
  desk.snapshot();
  trainer->give(resting({4, 5, 6}, true));
  desk.snapshot();
  trainer->write_checkpoint(
      {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  REQUIRE(desk.written());
  const auto loaded = load_checkpoint(directory / "m.safetensors", trainer->schema());
  CHECK(loaded->checkpoint.optimizer == OptimizerState{.momentum = {0, 0, 0}});
  CHECK(loaded->checkpoint.model == std::vector<float>{4, 5, 6});
}

TEST_CASE("A loss that is not finite stops the trainer until its model is replaced") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(still), {.nan_at = 3});
  trainer->start(desk.callbacks(), true);
  trainer->give({{0, 0, 0}, false, 1000, true});
  const Snapshot broken = desk.snapshot();
  CHECK(!broken.finite);
  CHECK(broken.step == 4);
  trainer->give({{0, 0, 0}, false, 1000, true});
  CHECK(!desk.snapshot().finite);
  CHECK(trainer->status().state == TrainerState::not_finite);
  trainer->give({{1, 1, 1}, true, 14, true});
  const Snapshot healed = desk.snapshot();
  CHECK(healed.finite);
  CHECK(healed.step == 14);
}

TEST_CASE("An update that makes the model infinite is noticed in the next snapshot") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(still));
  trainer->start(desk.callbacks(), true);
  trainer->give(resting({std::numeric_limits<float>::infinity(), 0, 0}));
  CHECK(!desk.snapshot().finite);
}

TEST_CASE(
    "The trainer stops by itself when the budget is spent, and evaluates what it ended with") {
  Desk desk;
  auto trainer = toy_trainer(toy_job("", 95));
  trainer->start(desk.callbacks());
  const Evaluation evaluation = desk.evaluation();
  CHECK(evaluation.step == 10);
  CHECK(evaluation.at_samples == 100);
  CHECK(trainer->status().state == TrainerState::finished);
  trainer->give({{0, 0, 0}, false, 1000, true});
  CHECK(desk.snapshot().step == 10);
}

TEST_CASE("What others have trained on counts towards the budget and the schedule") {
  Desk desk;
  auto trainer = toy_trainer(toy_job("", 1000));
  trainer->set_others_samples(950);
  trainer->start(desk.callbacks(), true);
  trainer->give({{0, 0, 0}, false, 1000, true});
  const Snapshot snapshot = desk.snapshot();
  CHECK(snapshot.step == 5);
  CHECK(snapshot.learning_rate == doctest::Approx(0));
}

TEST_CASE("Samples of the own counter are never fewer than the cluster remembers") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(still));
  trainer->raise_own_samples(500);
  trainer->start(desk.callbacks(), true);
  trainer->give(resting({0, 0, 0}));
  CHECK(desk.snapshot().samples == 500);
  trainer->raise_own_samples(400);
  trainer->give(resting({0, 0, 0}));
  CHECK(desk.snapshot().samples == 500);
}

TEST_CASE("Evaluations come whenever the cluster has passed another so many samples") {
  Desk desk;
  auto trainer = toy_trainer(toy_job("evaluate_every_samples = 100\n" + still));
  trainer->start(desk.callbacks());
  for (const Samples passed : {100, 200, 300}) CHECK(desk.evaluation().at_samples >= passed);
}

TEST_CASE("A long pause between steps does not delay stop") {
  TrainerOptions options;
  options.min_step_ms = 600'000;
  auto trainer = toy_trainer(toy_job(), {}, options);
  Desk desk;
  trainer->start(desk.callbacks());
  const auto began = std::chrono::steady_clock::now();
  trainer->stop();
  trainer->stop();
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(60));
}

TEST_CASE("Every step takes at least the time it is asked to take") {
  TrainerOptions options;
  options.min_step_ms = 5;
  Desk desk;
  auto trainer = toy_trainer(toy_job(), {}, options);
  trainer->start(desk.callbacks(), true);
  trainer->give({{0, 0, 0}, false, 4, true});
  CHECK(desk.snapshot().step_seconds >= 0.005);
}

TEST_CASE(
    "A device that fails is reported, and the trainer still stops and answers for its "
    "checkpoints") {
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = toy_trainer(toy_job(), {.throw_at = 2});
  trainer->start(desk.callbacks());
  const Error error = desk.failure();
  CHECK(error.code == "device-failed");
  CHECK(test::contains(error.text, "the toy broke"));
  CHECK(trainer->status().state == TrainerState::failed);
  trainer->write_checkpoint(
      {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  CHECK(desk.written());
  trainer->stop();
}

TEST_CASE("Exhausted main memory is told as such, and another device is no way out") {
  Desk desk;
  auto trainer = toy_trainer(toy_job(), {.no_memory_at = 2});
  trainer->start(desk.callbacks());
  const Error error = desk.failure();
  CHECK(error.code == "device-failed");
  CHECK_MESSAGE(test::contains(error.text,
                               "training on toy ran out of memory (batch of 10): main memory: "
                               "std::bad_alloc; free some on this machine, raise a limit"),
                error.text);
  CHECK_MESSAGE(!test::contains(error.text, "trainer.device"), error.text);
  trainer->stop();
}

TEST_CASE("A checkpoint asked for just before stop is written before stop returns") {
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = toy_trainer(toy_job());
  trainer->start(desk.callbacks());
  trainer->write_checkpoint(
      {directory / "m.safetensors", {{"node", "n1"}}, CheckpointRequest::Model::current, {}});
  trainer->stop();
  const auto loaded = load_checkpoint(directory / "m.safetensors", trainer->schema());
  REQUIRE(loaded);
  CHECK(loaded->checkpoint.metadata.at("node") == "n1");
  CHECK(loaded->checkpoint.job == trainer->job().hash());
}

TEST_CASE("A checkpoint that does not come to be written keeps neither steps nor evaluations") {
  Desk desk;
  const TemporaryDirectory directory;
  // To open it for writing takes somebody who reads: a disk that hangs until then.
  const std::filesystem::path hangs = directory / "c.safetensors.tmp";
  REQUIRE(::mkfifo(hangs.c_str(), 0600) == 0);
  auto trainer = toy_trainer(toy_job(still));
  trainer->start(desk.callbacks());
  trainer->write_checkpoint(
      {directory / "c.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  std::vector<Step> evaluated;
  for (int times = 0; times < 3; ++times) {
    trainer->request_evaluation();
    evaluated.push_back(desk.evaluation().step);
  }
  CHECK(evaluated[0] < evaluated[1]);
  CHECK(evaluated[1] < evaluated[2]);
  CHECK_FALSE(std::filesystem::exists(directory / "c.safetensors"));
  std::ifstream reader(hangs);
  CHECK_FALSE(desk.written());  // such a file cannot be flushed
  trainer->stop();
}

TEST_CASE("A stopped trainer writes a checkpoint of its last step at once") {
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = toy_trainer(toy_job("", 100));
  trainer->start(desk.callbacks());
  desk.evaluation();
  trainer->stop();
  trainer->write_checkpoint(
      {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  CHECK(desk.written());
  CHECK(load_checkpoint(directory / "m.safetensors", trainer->schema())->checkpoint.step == 10);
}

TEST_CASE(
    "The best checkpoint is exactly the model that was evaluated, however far training has gone "
    "on") {
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = toy_trainer(toy_job());
  const auto write = [&](std::uint64_t number) {
    trainer->write_checkpoint({directory / "best.safetensors",
                               {},
                               CheckpointRequest::Model::last_evaluated,
                               desk.on_written(),
                               number});
    return desk.written();
  };
  CHECK(write(1).error().code == "not-evaluated");
  trainer->start(desk.callbacks(), true);
  trainer->give({{0, 0, 0}, false, 3, true});
  desk.snapshot();
  trainer->request_evaluation();
  const Evaluation evaluation = desk.evaluation();
  CHECK(evaluation.asked_for);
  trainer->give({{0, 0, 0}, false, 100, true});
  desk.snapshot();
  CHECK(write(evaluation.number - 1).error().code == "superseded");
  const auto written = write(evaluation.number);
  const auto loaded = load_checkpoint(directory / "best.safetensors", trainer->schema());
  CHECK(loaded->checkpoint.step == evaluation.step);
  CHECK((written->step == evaluation.step && written->samples == loaded->checkpoint.samples));
  CHECK(loaded->checkpoint.model[0] == static_cast<float>(evaluation.loss));
}

TEST_CASE("Training on from a checkpoint equals never having stopped, bit for bit") {
  const TemporaryDirectory directory;
  const Job job = toy_job("[schedule]\nwarmup_samples = 300\n", 2000);
  const auto finish = [](Trainer& trainer) {
    Desk desk;
    trainer.start(desk.callbacks());
    desk.evaluation();
    trainer.stop();
    std::vector<float> model(3);
    trainer.copy_model(model);
    return std::pair(model, trainer.status().loss);
  };
  auto whole = toy_trainer(job);
  const auto want = finish(*whole);

  Desk desk;
  auto first = toy_trainer(job);
  auto callbacks = desk.callbacks();
  // on the training thread: the checkpoint is of the very next boundary
  callbacks.on_snapshot = [&](const Snapshot&) {
    first->write_checkpoint(
        {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  };
  first->start(callbacks, true);
  first->give({{0, 0, 0}, false, 63, true});
  REQUIRE(desk.written());
  auto loaded = load_checkpoint(directory / "m.safetensors", first->schema(), job.hash());
  REQUIRE(loaded);
  REQUIRE(loaded->checkpoint.step == 64);
  auto second = toy_trainer(job);
  REQUIRE(!second->restore(loaded->checkpoint));
  CHECK(finish(*second) == want);
}

TEST_CASE("A trainer can be stopped and started without a trace in the model") {
  const Job job = toy_job("", 5000);
  const auto run = [&](int stops) {
    auto trainer = toy_trainer(job);
    for (int i = 0; i < stops; ++i) {
      Desk desk;
      trainer->start(desk.callbacks());
      trainer->stop();
    }
    Desk desk;
    trainer->start(desk.callbacks());
    desk.evaluation();
    trainer->stop();
    std::vector<float> model(3);
    trainer->copy_model(model);
    return model;
  };
  CHECK(run(5) == run(0));
}

TEST_CASE("A checkpoint of another job is not restored") {
  auto trainer = toy_trainer(toy_job());
  Checkpoint checkpoint;
  checkpoint.model = {1, 2, 3};
  CHECK(trainer->restore(checkpoint)->code == "foreign-checkpoint");
}

TEST_CASE(
    "A checkpoint with another optimiser's state is not restored, whatever its job hash says") {
  const auto restored = [](const Job& job, const OptimizerState& state) {
    Checkpoint checkpoint;
    checkpoint.model = {1, 2, 3};
    checkpoint.optimizer = state;
    checkpoint.job = job.hash();
    return !toy_trainer(job)->restore(checkpoint);
  };
  const Job sgd = toy_job(), adamw = toy_job("[optimizer]\nkind = 'adamw'\n");
  const std::vector<float> some{1, 2, 3}, fewer{1, 2};
  CHECK(restored(sgd, {some, {}, 4}));
  CHECK(restored(adamw, {some, some, 4}));
  CHECK(restored(adamw, {}));
  CHECK(!restored(sgd, {some, some, 4}));
  CHECK(!restored(adamw, {some, {}, 4}));
  CHECK(!restored(adamw, {{}, some, 4}));
  CHECK(!restored(adamw, {some, fewer, 4}));
}
