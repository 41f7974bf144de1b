// What the word of a process that makes the steps comes to: in the engine, and in the training loop
// over an engine that plays both.
#include <chrono>
#include <cmath>
#include <limits>

#include "models_attached_process.h"

using namespace gossipd;
using attach::Go;
using test::Desk;
using test::End;
using test::parse_job;
using test::Process;

namespace {

// A process that multiplies its rate with what it is told, as it should.
class Outside final : public Engine, public OutsideSteps {
 public:
  OutsideSteps* outside() override { return this; }
  const Schema& schema() const override { return schema_; }
  std::string device() const override { return "outside"; }
  Samples shard_samples() const override { return 0; }
  void prepare_thread(int) override {}
  double step(Samples, double, std::uint32_t) override {
    FAIL("the steps are made outside");
    return 0;
  }
  void copy_model(std::span<float> out) override { std::ranges::fill(out, 0.0f); }
  void add_to_model(std::span<const float>) override {}
  void replace_model(std::span<const float>) override {}
  OptimizerState optimizer_state() override { return {}; }
  void restore_optimizer(const OptimizerState&) override {}
  std::optional<Figures> evaluate(std::span<const float>, const std::atomic<bool>&) override {
    return std::nullopt;
  }

  News meet(const Order& order) override {
    if (!order.training) return {.present = true};
    return {.step = order.step + 1,
            .samples = order.samples + 64,
            .loss = 1,
            .learning_rate = 0.5 * order.rate_factor,
            .step_seconds = 0.01,
            .present = true};
  }
  void wake() override {}

 private:
  Schema schema_ = *Schema::build({{"w", {3}, 0, 3, SegmentKind::parameter}});
};

}  // namespace

TEST_CASE("the word that something is done brings its steps, but neither a loss nor a rate") {
  End end;
  end.engine->replace_model(std::vector<float>(test::floats, 1.0f));
  Process trainer(end.path);
  end.let_in(trainer);
  const Go go = end.step(trainer, 1, 0);
  trainer.send(attach::Done{.sequence = go.sequence, .counters = {.steps = 2, .samples = 64 * 2}});
  OutsideSteps::News heard;
  end.meet_until([&](auto news) {
    heard = news;
    return news.step.has_value();
  });
  CHECK(heard.step == 2);
  CHECK(std::isnan(heard.loss));
  CHECK_FALSE(heard.learning_rate);
}

TEST_CASE("a trainer that does not say how long its steps take is timed by the daemon") {
  using Clock = std::chrono::steady_clock;
  End end;
  Process trainer(end.path);
  end.let_in(trainer);
  const auto told = [&](std::uint64_t sequence, Step steps, double seconds) {
    trainer.send(attach::StepDone{.sequence = sequence,
                                  .counters = {.steps = steps, .samples = 64 * steps},
                                  .loss = 1,
                                  .seconds = seconds});
    double heard = -1;
    end.meet_until([&](const auto& news) {
      if (news.step) heard = news.step_seconds;
      return news.step.has_value();
    });
    end.engine->wake();
    end.meet();
    (void)trainer.expect<Go>();
    return heard;
  };
  const auto began = Clock::now();
  CHECK(told(1, 0, 0) == 0);  // nothing to measure yet
  const double measured = told(2, 4, 0);
  CHECK(measured > 0);
  CHECK(measured * 4 < std::chrono::duration<double>(Clock::now() - began).count());
  CHECK(told(3, 4, 0) == measured);  // no step since
  CHECK(told(4, 5, 7) == 7);
}

TEST_CASE("The rate of steps made outside is shown as told, whatever rate an update wants") {
  Desk desk;
  const auto trainer = Trainer::with_engine(
      parse_job(
          "name = 'toy'\nbatch = 10\nbudget_samples = 1_000_000\n[schedule]\nkind = 'constant'\n"),
      {}, std::make_unique<Outside>());
  trainer->start(desk.callbacks(), true);
  Update update{{0, 0, 0}, false, 4, true};
  update.batch = 25;
  update.rate_scale = 2.5;
  trainer->give(update);
  (void)desk.snapshot();  // from before the first word of a rate
  trainer->give(update);
  const Snapshot snapshot = desk.snapshot();
  CHECK(snapshot.learning_rate == 0.5);
  CHECK(snapshot.learning_rate_peak == 0.5);
  CHECK(snapshot.batch == 64);
  CHECK(trainer->status().learning_rate == 0.5);
}

TEST_CASE("a variance of the mirror falls by at most a half by an update, with a trainer or not") {
  std::vector<Segment> list = test::segments();
  list[1].name = "bn.running_var";
  std::vector<float> update(test::floats, -3.0f);
  const auto expect = [](const std::vector<float>& mirror, float variance, float other) {
    CHECK(std::vector(mirror.begin() + 6, mirror.begin() + 8) == std::vector(2, variance));
    CHECK(mirror[0] == other);
  };
  End end({}, list);
  end.engine->replace_model(std::vector<float>(test::floats, 1.0f));
  end.engine->add_to_model(update);
  expect(end.mirror(), 0.5f, -2);
  Process trainer(end.path);
  end.let_in(trainer);
  end.done(trainer, end.step(trainer, 1, 0), 0);
  end.engine->add_to_model(update);
  expect(end.mirror(), 0.25f, -5);
  end.done(trainer, end.step(trainer, 2, 1), 1);
  trainer.leave();
  end.meet_until([](const auto& news) { return !news.present; });
  expect(end.mirror(), 0.25f, -5);
  update.assign(test::floats, -0.125f);
  end.engine->add_to_model(update);
  expect(end.mirror(), 0.125f, -5.125f);
}

TEST_CASE("a variance falls by at most a half under a model that its trainer has not taken yet") {
  std::vector<Segment> list = test::segments();
  list[1].name = "bn.running_var";
  End end({}, list);
  end.engine->replace_model(std::vector<float>(test::floats, 1.0f));
  Process trainer(end.path);
  end.let_in(trainer);
  const std::vector<float> update(test::floats, -1.5f);
  for (const auto& [variance, other] : {std::pair{0.5f, -0.5f}, std::pair{0.25f, -2.0f}}) {
    end.engine->add_to_model(update);
    CHECK(end.mirror()[6] == variance);
    CHECK(end.mirror()[0] == other);
  }
}

TEST_CASE("an infinity in a local segment of the trainer's keeps its node in the cluster") {
  std::vector<float> model(test::floats, 1.0f);
  model[8] = -std::numeric_limits<float>::infinity();
  End end;
  end.engine->replace_model(model);
  Desk desk;
  const auto trainer =
      Trainer::with_engine(parse_job("name = 'mine'\nbatch = 64\nbudget_samples = 1000\n[model]\n"
                                     "kind = 'external'"),
                           {}, std::move(end.engine));
  trainer->start(desk.callbacks(), true);
  trainer->give({.values = std::vector<float>(test::floats), .snapshot_step = 1, .training = true});
  const Snapshot snapshot = desk.snapshot();
  CHECK(snapshot.finite);
  CHECK(snapshot.model == model);
}
