// Several devices as one node, on CPU ranks: the same training as one device's, the same bits on
// all ranks, failures without a hang.
#include <torch/script.h>
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "models/checkpoint/checkpoint.h"
#include "models/devices/device_group.h"
#include "models/devices/device_replica.h"
#include "models/devices/model_traffic.h"
#include "models/devices/rank_threads.h"
#include "models_bars.h"

using namespace gossipd;
using test::adamw;
using test::Bars;
using test::bars_job;
using test::cnn;
using test::contains;
using test::Desk;
using test::engine_on;
using test::model_of;
using test::relative_distance;
using test::sgd;
using test::TemporaryDirectory;

namespace {

struct Run {
  std::vector<double> losses;
  std::vector<float> model;
  OptimizerState optimizer;
};

Run train(Engine& engine, Step from, Step to, std::uint32_t batch = 13) {
  Run run;
  for (Step step = from; step < to; ++step)
    run.losses.push_back(engine.step(13 * step, 0.05, batch));
  run.model = model_of(engine);
  run.optimizer = engine.optimizer_state();
  return run;
}

void check_alike(const Run& got, const Run& want) {
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    CHECK(got.losses[i] == doctest::Approx(want.losses[i]).epsilon(1e-4));
  CHECK(relative_distance(got.model, want.model) < 1e-5);
  CHECK(relative_distance(got.optimizer.momentum, want.optimizer.momentum) < 1e-3);
  CHECK(got.optimizer.steps == want.optimizer.steps);
}

// Fails where it gets fewer than two samples. With a `statistic`, as a batch norm that does.
std::string picky_model(const TemporaryDirectory& directory, bool statistic = false) {
  torch::manual_seed(1);
  torch::jit::Module module("Model");
  module.register_parameter("weight", (torch::randn({3, 768}) * 0.03).requires_grad_(), false);
  if (statistic) module.register_buffer("mean", torch::zeros({3}));
  module.define(
      "def forward(self, x):\n    assert x.size(0) > 1, 'this rank is out of luck'\n"
      "    return torch.matmul(torch.flatten(x, 1), self.weight.t())\n");
  const std::string path = directory / "model.pt";
  module.save(path);
  return path;
}

Job picky_job(const std::string& path) {
  Job job = bars_job("", sgd);
  job.model.kind = ModelSpec::Kind::torchscript;
  job.model.file = path;
  return job;
}

}  // namespace

TEST_CASE(
    "Two and three ranks train as one does, with either optimiser and batches that cannot be "
    "divided") {
  for (const std::string& optimizer : {sgd, adamw})
    for (const std::string& devices : std::vector<std::string>{"cpu,cpu", "cpu,cpu,cpu"}) {
      const Job job = bars_job(cnn, optimizer);
      const auto one = engine_on("cpu", job), several = engine_on(devices, job);
      CHECK(several->device() == devices);
      CHECK(model_of(*several) == model_of(*one));
      const Run want = train(*one, 0, 12);
      CHECK(want.losses.back() < want.losses.front());
      check_alike(train(*several, 0, 12), want);
    }
}

TEST_CASE(
    "A batch of fewer samples than ranks, clipping and accumulation come out as on one device") {
  const Job job = bars_job(cnn, sgd + "[training]\nclip_norm = 0.1\nmicro_batch = 3\n");
  const auto one = engine_on("cpu", job), three = engine_on("cpu,cpu,cpu", job);
  check_alike(train(*three, 0, 4, 2), train(*one, 0, 4, 2));
  check_alike(train(*three, 4, 8, 13), train(*one, 4, 8, 13));
}

TEST_CASE("No micro-batch is of the one sample that is left over: all are as equal as can be") {
  const TemporaryDirectory directory;
  const std::string path = picky_model(directory);
  Job job = picky_job(path);
  const auto whole = engine_on("cpu", job, path);
  job.training.micro_batch = 4;
  const auto parts = engine_on("cpu", job, path);
  check_alike(train(*parts, 0, 2), train(*whole, 0, 2));  // 13 samples
}

TEST_CASE(
    "With running statistics neither a micro-batch nor a rank gets the one sample left over") {
  const TemporaryDirectory directory;
  const std::string path = picky_model(directory, true);
  Job job = picky_job(path);
  const auto whole = engine_on("cpu", job, path);
  const auto two = engine_on("cpu,cpu", job, path), three = engine_on("cpu,cpu,cpu", job, path);
  job.training.micro_batch = 2;
  const auto parts = engine_on("cpu", job, path);
  for (const std::uint32_t batch : {3u, 5u, 13u}) {
    CAPTURE(batch);
    const Run want = train(*whole, 0, 2, batch);
    for (Engine* engine : {two.get(), three.get(), parts.get()})
      check_alike(train(*engine, 0, 2, batch), want);
  }
}

TEST_CASE("The gradient of several ranks is that of one, and leaves nothing behind") {
  const Job job = bars_job(cnn, sgd);
  const auto one = engine_on("cpu", job), two = engine_on("cpu,cpu", job);
  const std::vector<float> model = model_of(*one);
  std::vector<float> want(model.size()), got(model.size()), again(model.size());
  const double loss = one->gradient(model, 26, 7, want);
  CHECK(two->gradient(model, 26, 7, got) == doctest::Approx(loss).epsilon(1e-6));
  CHECK(relative_distance(got, want) < 1e-5);
  two->gradient(model, 26, 7, again);
  CHECK(again == got);
}

TEST_CASE("Of a set that nodes divide several ranks share the node's part as one device takes it") {
  const Job job = bars_job(cnn, sgd);
  std::vector<bool> odd(192);
  for (std::size_t b = 1; b < odd.size(); b += 2) odd[b] = true;
  const auto one = engine_on("cpu", job), two = engine_on("cpu,cpu", job);
  std::vector<Samples> places;
  for (Engine* engine : {static_cast<Engine*>(one.get()), static_cast<Engine*>(two.get())}) {
    engine->restrict_to(std::make_shared<const std::vector<bool>>(odd));
    Samples place = 0;
    for (int step = 0; step < 10; ++step) {
      engine->step(place, 0.05, 13);
      place = engine->next_position(place, 13);
    }
    places.push_back(place);
  }
  CHECK(places[0] == places[1]);
  CHECK(places[0] > 130 + 65);
  CHECK(relative_distance(model_of(*two), model_of(*one)) < 1e-5);
}

TEST_CASE("Several ranks go on from model and optimiser state bit for bit") {
  for (const std::string& optimizer : {sgd, adamw}) {
    const Job job = bars_job(cnn, optimizer);
    const auto whole = engine_on("cpu,cpu", job);
    const Run half = train(*whole, 0, 5);
    const Run want = train(*whole, 5, 10);
    const auto resumed = engine_on("cpu,cpu", job);
    resumed->replace_model(half.model);
    resumed->restore_optimizer(half.optimizer);
    const Run got = train(*resumed, 5, 10);
    CHECK(got.model == want.model);
    CHECK(got.losses == want.losses);
    CHECK(got.optimizer == want.optimizer);
  }
}

TEST_CASE("An update reaches every rank") {
  const Job job = bars_job(cnn, sgd);
  const auto one = engine_on("cpu", job), three = engine_on("cpu,cpu,cpu", job);
  const auto train_and_update = [](Engine& engine) {
    train(engine, 0, 3);
    std::vector<float> update(engine.schema().floats());
    for (std::size_t i = 0; i < update.size(); ++i)
      update[i] = 0.01f * static_cast<float>(std::sin(static_cast<double>(i)));
    engine.add_to_model(update);
    return train(engine, 3, 6);
  };
  check_alike(train_and_update(*three), train_and_update(*one));
  const std::vector<float> other(one->schema().floats(), 0.02f);
  for (GradientEngine* engine : {one.get(), three.get()}) {
    engine->replace_model(other);
    engine->restore_optimizer({});
  }
  check_alike(train(*three, 6, 9), train(*one, 6, 9));
}

TEST_CASE("Replicas that sum their gradients by c10d stay equal bit for bit, statistics included") {
  const Job job = bars_job("[model]\nkind = 'resnet20'\n", adamw, 9);
  const Bars set(job.data);
  HostBatch batch(set.input(), set.target(), 9);
  constexpr std::size_t ranks = 3;
  RankThreads threads(ranks);
  MeetingPlace place(ranks);
  std::vector<std::unique_ptr<DeviceReplica>> replicas(ranks);
  std::vector<std::unique_ptr<DeviceGroup>> groups(ranks);
  threads.run([&](std::size_t rank) {
    groups[rank] = place.join(rank, torch::kCPU);
    replicas[rank] = std::make_unique<DeviceReplica>(job, "", torch::kCPU);
  });
  const auto models = [&] {
    std::vector<std::vector<float>> out;
    for (const auto& replica : replicas) {
      out.emplace_back(replica->flat().schema().floats());
      replica->flat().copy_to(out.back());
    }
    return out;
  };
  const auto initial = models();
  for (std::size_t step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < 9; ++i)
      set.write((9 * step + i) % set.count(), nullptr, batch.view(), i);
    threads.run([&](std::size_t rank) {
      DeviceReplica& replica = *replicas[rank];
      replica.backward(batch, {static_cast<std::int64_t>(3 * rank), 3}, 9 * step, 0);
      const torch::NoGradGuard no_gradient;
      groups[rank]->sum(replica.flat().gradient());
      groups[rank]->copy_from_first(replica.flat().untrained());
      replica.descend(0.01);
    });
    const auto now = models();
    CHECK(now[0] == now[1]);
    CHECK(now[0] == now[2]);
    CHECK(now[0] != initial[0]);
  }
}

TEST_CASE("A rank that fails ends the step on all, by its name, and changes no model") {
  const TemporaryDirectory directory;
  const std::string path = picky_model(directory);
  const Job job = picky_job(path);
  const auto one = engine_on("cpu", job, path), two = engine_on("cpu,cpu", job, path);
  train(*one, 0, 1, 8);
  train(*two, 0, 1, 8);
  const std::vector<float> before = model_of(*two);
  std::string said;
  try {
    two->step(13, 0.05, 3);  // rank 1 gets one sample
  } catch (const std::exception& error) {
    said = error.what();
  }
  CHECK(contains(said, "rank 1 (cpu)"));
  CHECK(contains(said, "out of luck"));
  CHECK(model_of(*two) == before);
  // nothing is left of the step that failed
  check_alike(train(*two, 2, 5, 8), train(*one, 2, 5, 8));
}

TEST_CASE("A trainer on several devices ends as failed, and still writes its checkpoint") {
  const TemporaryDirectory directory;
  const std::string path = picky_model(directory);
  const Job job = picky_job(path);
  Desk desk;
  auto trainer = Trainer::with_engine(job, {}, engine_on("cpu,cpu", job, path));
  trainer->start(desk.callbacks(), true);
  trainer->give({std::vector<float>(trainer->schema().floats()), false, 1000, true, 3, 1.0});
  const Error error = desk.failure();
  CHECK(error.code == "device-failed");
  CHECK(contains(error.text, "training on cpu,cpu failed: rank 1 (cpu)"));
  trainer->write_checkpoint(
      {directory / "m.safetensors", {}, CheckpointRequest::Model::current, desk.on_written()});
  CHECK(desk.written());
  trainer->stop();
}

TEST_CASE("Lists of devices that cannot be one node are refused, each with its reason") {
  const Job job = bars_job(cnn, sgd);
  const auto set = std::make_shared<Bars>(job.data);
  const auto refusal = [&](const std::string& devices) {
    const auto engine = make_torch_engine(
        job, devices, 1, BatchSource(set, DataOrder(job.seed, set->count(), {})), set);
    REQUIRE(!engine);
    return engine.error().code + ": " + engine.error().text;
  };
  CHECK(contains(refusal("cpu,cuda:0"), "bad-config: device: 'cpu,cuda:0' mixes the CPU and CUDA"));
  CHECK(contains(refusal("cuda:1,cuda:1"), "names cuda:1 twice"));
  CHECK(contains(refusal("cpu,"), "'' is no device"));
  CHECK(contains(refusal("cpu,auto"), "'auto' is no device for a list"));
  std::string many = "cpu";
  for (int i = 0; i < 16; ++i) many += ",cpu";
  CHECK(contains(refusal(many), "names 17 devices"));
  if (!torch::cuda::is_available())
    CHECK(contains(refusal("cuda:all"), "no-device: device 'cuda:all'"));
}

TEST_CASE(
    "A model travels beside training: an update is added once, a copy is of the moment where it "
    "began") {
  const Job job = bars_job("[model]\nkind = 'resnet20'\n", sgd);
  DeviceReplica first(job, "", torch::kCPU), second(job, "", torch::kCPU);
  const std::size_t floats = first.flat().schema().floats();
  const auto model = [&](DeviceReplica& replica) {
    std::vector<float> out(floats);
    replica.flat().copy_to(out);
    return out;
  };
  ModelTraffic traffic({&first.flat(), &second.flat()});
  const std::vector<float> update(floats, 0.25f);
  DeviceReplica reference(job, "", torch::kCPU);
  for (int round = 0; round < 20; ++round) {
    reference.flat().add(update);
    traffic.begin_add(update);
    if (round % 2 == 0) traffic.take_update(/*wait=*/true);
    std::vector<float> copy(floats);
    traffic.begin_copy(copy);  // has the update in, whether or not it was taken
    const std::vector<float> want = model(reference);
    CHECK(model(first) == want);
    CHECK(model(second) == want);
    {
      const torch::NoGradGuard no_gradient;
      first.flat().trained().mul_(2);  // must not get into the copy
      traffic.settle();
      first.flat().trained().mul_(0.5);
    }
    CHECK(traffic.copied());
    CHECK(copy == want);
  }
  traffic.begin_add(update);
  traffic.take_update(/*wait=*/true);
  traffic.take_update(/*wait=*/true);
  reference.flat().add(update);
  CHECK(model(second) == model(reference));
}

TEST_CASE("Memory that runs out is one error with the device, the numbers and the way out") {
  const TemporaryDirectory directory;
  torch::manual_seed(1);
  torch::jit::Module module("Model");
  module.register_parameter("weight", (torch::randn({3, 768}) * 0.03).requires_grad_(), false);
  module.define(
      "def forward(self, x):\n    if x.size(0) > 4:\n        x = x + torch.zeros([1 << 46]).sum()\n"
      "    return torch.matmul(torch.flatten(x, 1), self.weight.t())\n");
  const std::string path = directory / "model.pt";
  module.save(path);
  const Job job = picky_job(path);
  for (const std::string& devices : std::vector<std::string>{"cpu", "cpu,cpu"}) {
    Desk desk;
    auto trainer = Trainer::with_engine(job, {}, engine_on(devices, job, path));
    trainer->start(desk.callbacks(), true);
    trainer->give({std::vector<float>(trainer->schema().floats()), false, 1000, true,
                   devices == "cpu" ? 5u : 10u, 1.0});
    const Error error = desk.failure();
    CHECK(error.code == "device-failed");
    CHECK_MESSAGE(contains(error.text, "training on " + devices + " ran out of memory (batch of "),
                  error.text);
    CHECK_MESSAGE(contains(error.text, "281474976710656 bytes"), error.text);
    CHECK(contains(error.text, "micro_batch"));
    CHECK(trainer->status().state == TrainerState::failed);
    if (devices != "cpu") CHECK(contains(error.text, "rank 0 (cpu)"));
  }
}

TEST_CASE(
    "A scaled loss changes no bit of the training, and a gradient that overflows takes no step and "
    "halves the scale") {
  Job job = bars_job(cnn, adamw + "[training]\nclip_norm = 0.5\n");
  DeviceReplica plain(job, "", torch::kCPU);
  job.training.precision = TrainingSpec::Precision::fp16;
  // the CPU computes in fp32: what is left of fp16 is the scale
  DeviceReplica scaled(job, "", torch::kCPU);
  const Bars set(job.data);
  HostBatch batch(set.input(), set.target(), 8);
  for (std::size_t i = 0; i < 8; ++i) set.write(i, nullptr, batch.view(), i);
  const auto model = [](DeviceReplica& replica) {
    std::vector<float> out(replica.flat().schema().floats());
    replica.flat().copy_to(out);
    return out;
  };
  const auto step = [&](DeviceReplica& replica) {
    replica.backward(batch, {0, 8}, 0, 0);
    REQUIRE(replica.unscale_gradient());
    replica.descend(0.01);
  };
  for (int i = 0; i < 3; ++i) {
    step(plain);
    step(scaled);
  }
  CHECK(scaled.loss(0) == plain.loss(0));
  CHECK(model(scaled) == model(plain));

  const std::vector<float> before = model(scaled);
  scaled.flat().gradient()[0] = std::numeric_limits<float>::infinity();
  CHECK(!scaled.unscale_gradient());
  CHECK((scaled.flat().gradient() == 0).all().item<bool>());
  CHECK(model(scaled) == before);
  OptimizerState state = scaled.optimizer_state();
  REQUIRE(state.loss_scale);
  CHECK(state.loss_scale->value() == 32768);
  state.loss_scale.reset();
  CHECK(state == plain.optimizer_state());
  step(plain);
  step(scaled);
  CHECK(model(scaled) == model(plain));
}

TEST_CASE("A step that overflows leaves statistics and counters as they were") {
  Job job = bars_job("[model]\nkind = 'resnet20'\n", sgd);
  job.training.precision = TrainingSpec::Precision::fp16;
  DeviceReplica replica(job, "", torch::kCPU);
  const Bars set(job.data);
  HostBatch batch(set.input(), set.target(), 8);
  for (std::size_t i = 0; i < 8; ++i) set.write(i, nullptr, batch.view(), i);
  const auto model = [&] {
    std::vector<float> out(replica.flat().schema().floats());
    replica.copy_model(out);
    return out;
  };
  replica.backward(batch, {0, 8}, 0, 0);
  REQUIRE(replica.unscale_gradient());
  replica.descend(0.01);
  const std::vector<float> before = model();
  replica.backward(batch, {0, 8}, 0, 0);
  CHECK(model() != before);
  replica.flat().gradient()[0] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(replica.unscale_gradient());
  CHECK(model() == before);
}

TEST_CASE(
    "With a loss scale that has moved, a checkpoint and k steps are k more steps, bit for bit") {
  const Job job = bars_job(cnn, adamw + "[training]\nprecision = 'fp16'\n");
  const Bars set(job.data);
  const auto train = [&](DeviceReplica& replica, std::size_t begin, std::size_t end) {
    HostBatch batch(set.input(), set.target(), 8);
    for (std::size_t k = begin; k < end; ++k) {
      for (std::size_t i = 0; i < 8; ++i) set.write(8 * k + i, nullptr, batch.view(), i);
      replica.backward(batch, {0, 8}, 8 * k, 0);
      torch::Tensor& gradient = replica.flat().gradient();
      // as a type that ends there
      gradient.masked_fill_(gradient.abs() > 6000.0, std::numeric_limits<float>::infinity());
      if (replica.unscale_gradient()) replica.descend(0.01);
    }
    Checkpoint out;
    out.model.resize(replica.flat().schema().floats());
    replica.flat().copy_to(out.model);
    out.optimizer = replica.optimizer_state();
    return out;
  };
  DeviceReplica whole(job, "", torch::kCPU);
  const TemporaryDirectory directory;
  const Checkpoint half = train(whole, 0, 12);
  REQUIRE(half.optimizer.loss_scale);
  REQUIRE(half.optimizer.loss_scale->value() < LossScale{}.value());
  REQUIRE(half.optimizer.loss_scale->good_steps() > 0);
  REQUIRE(write_checkpoint(directory / "m.safetensors", whole.flat().schema(), half));
  const Checkpoint want = train(whole, 12, 24);

  auto loaded = load_checkpoint(directory / "m.safetensors", whole.flat().schema());
  REQUIRE(loaded);
  const auto go_on = [&](const OptimizerState& optimizer) {
    DeviceReplica resumed(job, "", torch::kCPU);
    resumed.flat().copy_from(loaded->checkpoint.model);
    resumed.restore_optimizer(optimizer);
    return train(resumed, 12, 24);
  };
  const Checkpoint got = go_on(loaded->checkpoint.optimizer);
  CHECK(got.model == want.model);
  CHECK(got.optimizer == want.optimizer);
  // Of an old checkpoint: it begins anew, and loses the steps until it has fallen again.
  loaded->checkpoint.optimizer.loss_scale.reset();
  CHECK(go_on(loaded->checkpoint.optimizer).optimizer.steps < want.optimizer.steps);
}

TEST_CASE("fp16 is refused where there is no GPU, with what would do") {
  const Job job = bars_job(cnn, sgd + "[training]\nprecision = 'fp16'\n");
  const auto set = std::make_shared<Bars>(job.data);
  const auto engine = make_torch_engine(
      job, "cpu", 1, BatchSource(set, DataOrder(job.seed, set->count(), {})), set);
  REQUIRE(!engine);
  CHECK(engine.error().code == "no-device");
  CHECK(contains(engine.error().text, "fp16"));
  CHECK(contains(engine.error().text, "bf16"));
}
