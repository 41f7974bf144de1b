// What only a card can show: that every family trains in every precision, that copies beside
// training hold the right bits and wait for nobody, that exhausted memory and overflow cost a step
// and not the node. tests/gpu/run_gpu.py runs it; GOSSIPD_GPU_DEVICE=cpu tries the program.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/gpu/gpu_support.h"

#include <c10/core/StreamGuard.h>
#include <torch/script.h>
#undef CHECK
#define CHECK DOCTEST_CHECK

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

#if defined(GOSSIPD_GPU_SYNC_DEBUG)
#include <c10/cuda/CUDAFunctions.h>
#endif

#include "models/checkpoint/checkpoint.h"
#include "models/devices/cuda_runtime.h"
#include "models/devices/device_group.h"
#include "models/devices/device_replica.h"
#include "models/devices/host_batch.h"
#include "models/devices/model_traffic.h"
#include "models/devices/runtime.h"

namespace gossipd::gpu {

torch::Device device() {
  const char* text = std::getenv("GOSSIPD_GPU_DEVICE");
  return torch::Device(text != nullptr ? text : "cuda:0");
}

nlohmann::json& figures() {
  static nlohmann::json all = nlohmann::json::object();
  return all;
}

void not_covered(const std::string& what) {
  figures()["not_covered"].push_back(what);
  std::printf("not covered: %s\n", what.c_str());
}

namespace {

using torch::Tensor;

struct Family {
  std::string name;
  std::string model;
  std::string data;
  bool large = false;  // not in a dry run
};

std::vector<Family> families() {
  return {{"mlp", "kind = 'mlp'\nhidden = [64]\n", images},
          {"mlp of odd sizes", "kind = 'mlp'\nhidden = [33, 7]\n", images},
          {"cnn", "kind = 'cnn'\nwidth = 8\nhidden = [32]\n", images},
          {"cnn of odd sizes", "kind = 'cnn'\nwidth = 5\nhidden = [13]\n", images},
          {"resnet20", "kind = 'resnet20'\n", images, true},
          {"resnet18", "kind = 'resnet18'\n", large_images, true},
          {"resnet50", "kind = 'resnet50'\n", large_images, true},
          {"vit", "kind = 'vit'\ndim = 48\ndepth = 2\nheads = 3\n", images},
          {"gpt", "kind = 'gpt'\ndim = 48\ndepth = 2\nheads = 3\n", tokens(32)}};
}

void train(Engine& engine, Step steps, Samples from = 0, double rate = 0.001) {
  for (Step step = 0; step < steps; ++step)
    REQUIRE(std::isfinite(engine.step(from + 16 * step, rate)));
}

// Of so many losses at the end: with batches of 16 single ones jump.
double median_of_last(std::vector<double> losses, std::size_t count) {
  for (const double loss : losses) REQUIRE(std::isfinite(loss));
  losses.erase(losses.begin(), losses.end() - static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(losses);
  return losses[count / 2];
}

// Keeps the current stream busy for some time: a chain of products.
void queue_work() {
  const std::int64_t size = is_dry() ? 64 : 4096;
  Tensor x = torch::full({size, size}, 1.0f / static_cast<float>(size), torch::device(device()));
  for (int i = 0; i < (is_dry() ? 1 : 8); ++i) x = torch::matmul(x, x);
}

}  // namespace

TEST_CASE("preflight: the device computes, and its memory can be locked") {
  if (is_dry()) return not_covered("a dry run on the CPU shows nothing about any card");
  REQUIRE_MESSAGE(torch::cuda::is_available(), why_no_cuda(cuda_facts(true, 0)).text);
  REQUIRE(device().index() < static_cast<int>(torch::cuda::device_count()));
  const Tensor ones = torch::ones({1000}, torch::device(device()));
  CHECK(ones.sum().item<float>() == 1000.0f);
  const PageLocked memory((std::size_t{1} << 20) + 4096);
  CHECK(memory.is_locked());
  CHECK_FALSE(memory_figures().empty());
}

TEST_CASE("families: each trains in each precision, near the CPU's in fp32") {
  for (const Family& family : families())
    for (const std::string precision : {"fp32", "tf32", "bf16", "fp16"})
      for (const std::string& optimizer : {sgd, adamw}) {
        if (is_dry() && (family.large || precision != "fp32")) continue;
        CAPTURE(family.name);
        CAPTURE(precision);
        const Job j = job(family.model, family.data,
                          optimizer + "[training]\nprecision = '" + precision + "'\n");
        const auto on_device = engine(j);
        const double rate = optimizer == sgd ? 0.002 : 0.001;
        const double before = on_device->step(0, rate);
        std::vector<double> losses;
        for (Step step = 0; step < 40; ++step) losses.push_back(on_device->step(16 * step, rate));
        CHECK(median_of_last(losses, 10) < before);
        if (precision != "fp32") continue;
        // One step, held against a network that begins 1e-7 from the CPU's: how far apart rounding
        // may lead depends on the network and, with AdamW, on how many gradients are nearly 0.
        const auto here = engine(j), there = engine(j, "cpu"), nudged = engine(j, "cpu");
        std::vector<float> model = model_of(*nudged);
        for (float& x : model) x *= 1 + 1e-7f;
        nudged->replace_model(model);
        for (Engine* one : {here.get(), there.get(), nudged.get()}) train(*one, 1);
        const double apart = relative_distance(model_of(*here), model_of(*there));
        const double by_rounding = relative_distance(model_of(*nudged), model_of(*there));
        figures()["families"][family.name][optimizer == sgd ? "sgd" : "adamw"] = {
            {"from_cpu", apart}, {"by_rounding", by_rounding}};
        CHECK(apart < std::max(1e-5, 10 * by_rounding));
      }
}

TEST_CASE("snapshots: 200 under queued work are bit-equal to synchronous copies") {
  const Job j = job("kind = 'resnet20'\n", images);
  DeviceReplica replica(j, "", device());
  FlatModel& flat = replica.flat();
  ModelTraffic traffic({&flat});
  const std::size_t floats = flat.schema().floats();
  std::vector<float> update(floats, 1.0f), out(floats);  // counters are whole numbers
  const torch::NoGradGuard no_gradient;
  int different = 0;
  for (int i = 0; i < (is_dry() ? 20 : 200); ++i) {
    queue_work();
    flat.trained().add_(1.0f);  // behind it
    if (i % 3 == 0) {
      traffic.begin_add(update);
      traffic.take_update(/*wait=*/true);
    }
    const Tensor trained = flat.trained().clone(), rest = flat.untrained().clone();
    traffic.begin_copy(out);
    flat.trained().mul_(0.5f);  // must not get into the copy
    traffic.settle();
    const Tensor want = torch::cat({trained, rest}).cpu();
    const Tensor got = torch::from_blob(out.data(), want.sizes());
    if (!torch::equal(got, want)) ++different;
    CHECK(traffic.copy_is_finite());
  }
  CHECK(different == 0);
}

TEST_CASE("no waiting: warm steps, snapshots and updates wait for no stream") {
#if defined(GOSSIPD_GPU_SYNC_DEBUG)
  if (is_dry()) return not_covered("the sync-debug mode (dry run)");
  for (const std::string& optimizer : {sgd, adamw}) {
    const Job j = job("kind = 'resnet20'\n", images, optimizer + "[training]\nclip_norm = 1.0\n");
    const auto e = engine(j);
    std::vector<float> out(e->schema().floats()), update(out.size(), 0.001f);
    train(*e, 5);
    e->begin_copy(out);  // the first one makes its memory
    e->settle();
    e->add_to_model(update);
    train(*e, 5);
    struct Strict {
      Strict() { set(c10::cuda::SyncDebugMode::L_ERROR); }
      ~Strict() { set(c10::cuda::SyncDebugMode::L_DISABLED); }
      static void set(c10::cuda::SyncDebugMode mode) {
        c10::cuda::warning_state().set_sync_debug_mode(mode);
      }
    };
    {
      const Strict strict;
      for (int round = 0; round < 5; ++round) {
        if (e->ready_to_copy()) e->begin_copy(out);
        while (!e->copied()) train(*e, 1);
        CHECK(e->copy_is_finite().value_or(false));
        e->add_to_model(update);
        train(*e, 3);
      }
    }
  }
#else
  not_covered("the sync-debug mode (built without CUDA's headers)");
#endif
}

TEST_CASE("memory: what has no room is typed, has figures, and leaves the engine usable") {
  const test::TemporaryDirectory directory;
  const std::filesystem::path file = directory / "model.pt";
  torch::manual_seed(1);
  torch::jit::Module module("Model");
  module.register_parameter("weight", (torch::randn({4, 3072}) * 0.03).requires_grad_(), false);
  module.define(
      "def forward(self, x):\n    if x.size(0) > 5:\n"
      "        x = x + torch.zeros([1 << 46], device=x.device).sum()\n"
      "    return torch.matmul(torch.flatten(x, 1), self.weight.t())\n");
  module.save(file.string());
  Job j = job("kind = 'mlp'\n", images, sgd);
  j.model.kind = ModelSpec::Kind::torchscript;
  j.model.file = file.string();
  const auto e = engine(j, device().str(), file.string());
  CHECK_THROWS_AS(e->step(0, 0.01, 16), OutOfMemory);
  try {
    e->step(0, 0.01, 16);
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    CHECK_MESSAGE(text.find(device().str()) == 0, text);
    if (!is_dry()) CHECK_MESSAGE(text.find("GiB") != std::string::npos, text);
  }
  CHECK(std::isfinite(e->step(0, 0.01, 4)));
  const auto figures = e->evaluate(model_of(*e), std::atomic<bool>{false});  // 16, then 8, then 4
  CHECK(figures.has_value());
}

TEST_CASE("replaced: the first step of a model that came says its own loss, not the last one's") {
  const auto e = engine(job("kind = 'mlp'\n", images, sgd));
  const std::vector<float> good = model_of(*e);
  const double before = e->step(0, 0.01);
  e->replace_model(std::vector<float>(good.size(), std::numeric_limits<float>::quiet_NaN()));
  CHECK(std::isnan(e->step(0, 0.01)));
  e->replace_model(good);
  e->restore_optimizer({});  // as the trainer does
  CHECK(e->step(0, 0.01) == doctest::Approx(before));
  CHECK(std::isfinite(e->step(16, 0.01)));
}

TEST_CASE("fp16: an overflow on the way forward skips the step, and training goes on") {
  if (is_dry()) return not_covered("fp16 (dry run)");
  const Job j = job("kind = 'resnet20'\n", images, sgd + "[training]\nprecision = 'fp16'\n");
  DeviceReplica replica(j, "", device());
  const Made set(j.data);
  HostBatch batch(set.input(), set.target(), 16, device());
  for (std::size_t i = 0; i < 16; ++i) set.write(i, nullptr, batch.view(), i);
  const auto step = [&] {
    replica.backward(batch, {0, 16}, 0, 0);
    const bool whole = replica.unscale_gradient();
    if (whole) replica.descend(0.01);
    return whole;
  };
  for (int tries = 0; tries < 20 && !step(); ++tries) continue;
  REQUIRE(step());
  std::vector<float> before(replica.flat().schema().floats()), after(before.size());
  replica.copy_model(before);
  const Tensor good = batch.inputs.clone();
  batch.inputs.mul_(1e8f);  // beyond the largest half
  CHECK_FALSE(step());
  replica.copy_model(after);
  CHECK(after == before);
  CHECK(replica.optimizer_state().loss_scale->value() < 65536);
  batch.inputs.copy_(good);
  CHECK(step());
  CHECK(std::isfinite(replica.loss(0)));
}

TEST_CASE("deterministic: a run that is resumed from its state is the run, bit for bit") {
  for (const Family& family : families()) {
    if (is_dry() && family.large) continue;
    CAPTURE(family.name);
    const Job j = job(family.model, family.data, adamw + "[training]\ndeterministic = true\n");
    const auto whole = engine(j);
    train(*whole, 5);
    const std::vector<float> half = model_of(*whole);
    const OptimizerState optimizer = whole->optimizer_state();
    train(*whole, 5, 80);
    const auto resumed = engine(j);
    resumed->replace_model(half);
    resumed->restore_optimizer(optimizer);
    train(*resumed, 5, 80);
    CHECK(model_of(*resumed) == model_of(*whole));
  }
}

TEST_CASE("checkpoints: from the device to the CPU and back lose no bit") {
  const test::TemporaryDirectory directory;
  const std::filesystem::path file = directory / "current.safetensors";
  for (const std::string& optimizer : {sgd, adamw}) {
    const Job j = job("kind = 'resnet20'\n", images, optimizer);
    const auto save = [&](Engine& from) {
      Checkpoint out;
      out.model = model_of(from);
      out.optimizer = from.optimizer_state();
      REQUIRE(write_checkpoint(file, from.schema(), out));
      return out;
    };
    const auto load = [&](Engine& into, const Checkpoint& want) {
      const auto loaded = load_checkpoint(file, into.schema());
      REQUIRE(loaded);
      into.replace_model(loaded->checkpoint.model);
      into.restore_optimizer(loaded->checkpoint.optimizer);
      CHECK(model_of(into) == want.model);
      CHECK(into.optimizer_state() == want.optimizer);
    };
    const auto card = engine(j), host = engine(j, "cpu"), again = engine(j);
    train(*card, 5);
    load(*host, save(*card));
    train(*host, 3, 80);
    load(*again, save(*host));
    train(*again, 3, 128);
  }
}

TEST_CASE("groups: a group of one sums on the device; several cards train as one does") {
  if (const auto why = why_no_group(device().type())) {
    if (!is_dry()) FAIL(*why);
    return not_covered("groups: " + *why);
  }
  MeetingPlace alone(1);
  const auto group = alone.join(0, device());
  Tensor zeros = torch::zeros({1 << 20}, torch::device(device()));
  try_group(*group, 1, zeros, torch::ones({100}, torch::device(device())));
  const auto cards = static_cast<std::size_t>(is_dry() ? 0 : torch::cuda::device_count());
  if (cards < 2) return not_covered("several cards as one node: this machine has one");
  const Job j = job("kind = 'resnet20'\n", images);
  const auto one = engine(j), all = engine(j, "cuda:all");
  train(*one, 10);
  train(*all, 10);
  CHECK(relative_distance(model_of(*all), model_of(*one)) < 1e-2);
}

}  // namespace gossipd::gpu

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // for whoever looks on through a pipe
  gossipd::prepare_training_process(
      std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  doctest::Context context(argc, argv);
  const int result = context.run();
  auto& figures = gossipd::gpu::figures();
  figures["device"] = gossipd::gpu::device().str();
  figures["torch"] = TORCH_VERSION;
  if (const char* path = std::getenv("GOSSIPD_GPU_FIGURES"))
    std::ofstream(path) << figures.dump(2) << '\n';
  return result;
}
