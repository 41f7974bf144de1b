// The training loop over a toy engine that copies the model, and takes updates in, while steps go
// on, as a GPU's does.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>

#include "models_test_support.h"

using namespace gossipd;
using test::Desk;
using test::parse_job;
using test::TemporaryDirectory;

namespace {

constexpr std::size_t floats = 3;
constexpr int never = std::numeric_limits<int>::max();

struct Script {
  int copy_takes = 0;    // looks at copied() until the copy is there
  int update_takes = 0;  // steps until an update is in the model
  bool copy_breaks = false;
  std::optional<bool> copy_is_finite = std::nullopt;
  int evaluations_break = 0;  // the first so many
};

// How often the training thread had to wait.
struct Waits {
  std::atomic<int> for_copies{0};
  std::atomic<int> for_updates{0};  // before a copy could begin
};

// Every step adds 1 to every parameter. Copies are read off, and updates added, as late as engine.h
// allows.
class LateEngine : public Engine {
 public:
  explicit LateEngine(Script script, Waits* waits = nullptr)
      : script_(script), waits_(waits != nullptr ? waits : &own_waits_) {
    schema_ = *Schema::build({{"w", {floats}, 0, floats, SegmentKind::parameter}});
  }

  const Schema& schema() const override { return schema_; }
  std::string device() const override { return "late"; }
  Samples shard_samples() const override { return 100; }
  void prepare_thread(int) override {}
  double step(Samples, double, std::uint32_t) override {
    if (!update_.empty() && steps_left_-- == 0) take_update();
    for (float& x : model_) x += 1;
    return 1.0;
  }
  void copy_model(std::span<float> out) override {
    take_update();
    std::ranges::copy(model_, out.begin());
  }
  void begin_copy(std::span<float> out) override {
    if (!update_.empty()) ++waits_->for_updates;
    take_update();
    REQUIRE(out_.empty());
    out_ = out;
    copy_ = model_;
    looks_left_ = script_.copy_takes;
  }
  bool copied() override {
    if (script_.copy_breaks) throw std::runtime_error("the copy broke");
    if (!out_.empty() && looks_left_ > 0) {
      if (looks_left_ != never) --looks_left_;
      return false;
    }
    finish_copy();
    return true;
  }
  bool ready_to_copy() const override { return update_.empty(); }
  std::optional<bool> copy_is_finite() override { return script_.copy_is_finite; }
  void settle() override {
    if (!out_.empty()) ++waits_->for_copies;
    take_update();
    finish_copy();
  }
  void add_to_model(std::span<const float> values) override {
    REQUIRE(update_.empty());
    update_ = values;
    steps_left_ = script_.update_takes;
  }
  void replace_model(std::span<const float> values) override {
    update_ = {};
    std::ranges::copy(values, model_.begin());
  }
  OptimizerState optimizer_state() override { return {.momentum = {0, 0, 0}}; }
  void restore_optimizer(const OptimizerState&) override {}
  std::optional<Figures> evaluate(std::span<const float> model, const std::atomic<bool>&) override {
    if (evaluations_++ < script_.evaluations_break) throw std::runtime_error("no room to evaluate");
    return Figures{.loss = model[0]};
  }

 private:
  void take_update() {
    for (std::size_t i = 0; i < update_.size(); ++i) model_[i] += update_[i];
    update_ = {};
  }
  void finish_copy() {
    if (!out_.empty()) std::ranges::copy(copy_, out_.begin());
    out_ = {};
  }

  const Script script_;
  Schema schema_;
  std::vector<float> model_ = {0, 0, 0};
  std::vector<float> copy_;
  std::span<float> out_;
  std::span<const float> update_;
  int looks_left_ = 0;
  int steps_left_ = 0;
  int evaluations_ = 0;  // the evaluation thread's
  Waits own_waits_;
  Waits* const waits_;
};

std::unique_ptr<Trainer> late_trainer(Script script, Samples budget = Samples{1} << 50,
                                      Waits* waits = nullptr) {
  const Job job =
      parse_job("name = 'late'\nbatch = 10\nbudget_samples = " + std::to_string(budget) + "\n");
  return Trainer::with_engine(job, {}, std::make_unique<LateEngine>(script, waits));
}

Update hundred(Step steps) { return {std::vector<float>(floats, 100.0f), false, steps, true}; }

// What a snapshot says it is of, and what its model is of, when each step adds 1.
void check_of_one_moment(const Snapshot& snapshot, float added) {
  CHECK(snapshot.model == std::vector<float>(floats, static_cast<float>(snapshot.step) + added));
  CHECK(snapshot.samples == 10 * snapshot.step);
}

}  // namespace

TEST_CASE(
    "Steps go on while the model is copied, and the snapshot is of the step where that began") {
  Desk desk;
  auto trainer = late_trainer({.copy_takes = 7});
  trainer->start(desk.callbacks(), true);
  trainer->give({{0, 0, 0}, false, 5, true});
  const Snapshot first = desk.snapshot();
  CHECK(first.step == 5);
  check_of_one_moment(first, 0);
  const Step due = first.step + 7 + 20;
  trainer->give(hundred(due));
  const Snapshot second = desk.snapshot();
  CHECK(second.step >= due);  // steps go on until the update is there
  check_of_one_moment(second, 100);
}

TEST_CASE("An update that arrives late is in the next snapshot, exactly once, however late") {
  for (const int takes : {0, 1, 4, 50}) {
    Desk desk;
    auto trainer = late_trainer({.copy_takes = 2, .update_takes = takes});
    trainer->start(desk.callbacks(), true);
    float added = 0;
    for (int round = 0; round < 5; ++round) {
      trainer->give(hundred(4));
      check_of_one_moment(desk.snapshot(), added += 100);
    }
    trainer->stop();
  }
}

TEST_CASE(
    "The training thread waits neither for an update to come in nor for a copy, not even where the "
    "snapshot is asked back") {
  for (const bool asked_back : {false, true}) {
    Desk desk;
    Waits waits;
    auto trainer = late_trainer({.copy_takes = 5, .update_takes = 9}, Samples{1} << 50, &waits);
    trainer->start(desk.callbacks(), true);
    trainer->give(hundred(asked_back ? Step{1} << 60 : 1));
    if (asked_back) trainer->recall();
    check_of_one_moment(desk.snapshot(), 100);
    CHECK(waits.for_updates == 0);
    CHECK(waits.for_copies == 0);
    trainer->stop();
  }
}

TEST_CASE("A trainer told to rest does not wait for steps that will not come") {
  Desk desk;
  auto trainer = late_trainer({.copy_takes = never, .update_takes = never});
  trainer->start(desk.callbacks(), true);
  Update resting = hundred(1);
  resting.training = false;
  trainer->give(resting);
  check_of_one_moment(desk.snapshot(), 100);
}

TEST_CASE("Where the engine knows whether a copy is finite, its word holds") {
  Desk desk;
  auto trainer = late_trainer({.copy_is_finite = false});
  trainer->start(desk.callbacks(), true);
  trainer->give(hundred(3));
  CHECK_FALSE(desk.snapshot().finite);
  CHECK(trainer->status().state == TrainerState::not_finite);
}

TEST_CASE("An evaluation that fails is reported, and training and the next evaluation go on") {
  Desk desk;
  auto trainer = late_trainer({.evaluations_break = 1});
  trainer->start(desk.callbacks(), true);
  trainer->give(hundred(4));
  CHECK(desk.snapshot().step == 4);
  trainer->request_evaluation();
  const Error error = desk.evaluation_failure();
  CHECK(error.code == "evaluation-failed");
  CHECK(test::contains(error.text, "no room to evaluate"));
  trainer->give(hundred(4));
  CHECK(desk.snapshot().step > 4);
  CHECK(trainer->status().state == TrainerState::training);
  trainer->request_evaluation();
  CHECK(desk.evaluation().asked_for);
}

TEST_CASE("A trainer whose budget is spent gives back what it was copying") {
  Desk desk;
  auto trainer = late_trainer({.copy_takes = never, .update_takes = 4}, 300);
  trainer->start(desk.callbacks(), true);
  trainer->give(hundred(10));
  const Snapshot snapshot = desk.snapshot();
  CHECK(snapshot.step == 10);
  check_of_one_moment(snapshot, 100);
  CHECK(trainer->status().step == 30);
}

TEST_CASE("A trainer that was stopped in the middle of a copy gives it back when it starts again") {
  Desk desk;
  auto trainer = late_trainer({.copy_takes = never});
  const TemporaryDirectory directory;
  auto callbacks = desk.callbacks();
  trainer->start(callbacks, true);
  trainer->give(hundred(3));
  // Written at a boundary after the copy began.
  do {
    trainer->write_checkpoint(
        {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
    REQUIRE(desk.written());
  } while (load_checkpoint(directory / "m.safetensors", trainer->schema())->checkpoint.step < 4);
  trainer->stop();
  trainer->start(callbacks);
  const Snapshot snapshot = desk.snapshot();
  CHECK(snapshot.step == 3);
  check_of_one_moment(snapshot, 100);
}

TEST_CASE("A checkpoint taken while an update is on its way has it in") {
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = late_trainer({.update_takes = never});
  trainer->start(desk.callbacks(), true);
  trainer->give(hundred(Step{1} << 60));
  trainer->write_checkpoint(
      {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  REQUIRE(desk.written());
  trainer->stop();
  const auto loaded = load_checkpoint(directory / "m.safetensors", trainer->schema());
  CHECK(loaded->checkpoint.model[0] == static_cast<float>(loaded->checkpoint.step) + 100.0f);
}

TEST_CASE("A copy that fails ends training as failed") {
  Desk desk;
  auto trainer = late_trainer({.copy_breaks = true});
  trainer->start(desk.callbacks(), true);
  trainer->give(hundred(2));
  CHECK(test::contains(desk.failure().text, "the copy broke"));
  CHECK(trainer->status().state == TrainerState::failed);
  trainer->stop();
}

TEST_CASE("A checkpoint's duration is that of its own writing, not of another one's before it") {
  using Clock = std::chrono::steady_clock;
  const TemporaryDirectory directory;
  Desk desk;
  auto trainer = late_trainer({});
  trainer->start(desk.callbacks(), true);
  const Clock::time_point asked = Clock::now();
  std::atomic<Clock::time_point> first_done{};
  CheckpointRequest slow{
      directory / "slow.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()};
  slow.refuses = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return std::optional<Error>();
  };
  slow.done = [&, told = desk.on_written()](Result<WrittenCheckpoint> written) {
    first_done = Clock::now();
    told(std::move(written));
  };
  trainer->write_checkpoint(std::move(slow));
  trainer->write_checkpoint(
      {directory / "next.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  const auto first = desk.written(), second = desk.written();
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->took >= std::chrono::milliseconds(50));
  CHECK(first->took <= first_done.load() - asked);
  CHECK(second->took > Duration{});
  CHECK(second->took <= Clock::now() - first_done.load());
}
