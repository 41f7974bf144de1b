// What only a GPU does in earnest, as far as a CPU can try it: groups that are tried before the
// first step, copies through pieces of memory, the optimiser by LibTorch's kernels, exhausted
// memory in an evaluation, fp16 that overflows. What needs a card has not been run.
#include <torch/script.h>
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>

#include "models/descent/device_descent.h"
#include "models/devices/device_group.h"
#include "models/devices/device_replica.h"
#include "models/devices/model_traffic.h"
#include "models/devices/rank_threads.h"
#include "models/devices/runtime.h"
#include "models/devices/staging.h"
#include "models/devices/torch_device.h"
#include "models/networks/torchscript.h"
#include "models_bars.h"

using namespace gossipd;
using test::Bars;
using test::bars_job;
using test::cnn;
using test::contains;
using test::engine_on;
using test::model_of;
using test::sgd;
using test::TemporaryDirectory;

namespace {

// Adds as if each of `heard` ranks had the same values.
class MadeUpGroup : public DeviceGroup {
 public:
  explicit MadeUpGroup(double heard) : heard_(heard) {}
  void sum(torch::Tensor& values) override {
    summed.push_back(values.numel());
    values.mul_(heard_);
  }
  void copy_from_first(torch::Tensor& values) override { copied.push_back(values.numel()); }
  std::vector<std::int64_t> summed, copied;

 private:
  const double heard_;
};

// Its labels are outside the job's classes once it is `wrong`.
class Mislabelled : public Bars {
 public:
  using Bars::Bars;
  void write(std::size_t index, const Variation* variation, const Batch& batch,
             std::size_t at) const override {
    Bars::write(index, variation, batch, at);
    if (wrong) place<std::int64_t>(batch.targets, at, 1)[0] = 99;
  }
  bool wrong = false;
};

std::vector<float> ramp(std::size_t size, float factor = 1) {
  std::vector<float> out(size);
  for (std::size_t i = 0; i < size; ++i)
    out[i] = factor * static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 1));
  return out;
}

torch::Tensor tensor_of(const std::vector<float>& values) {
  return torch::tensor(values, torch::kFloat32);
}

std::string failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::vector<float> values_of(DeviceReplica& replica) {
  std::vector<float> out(replica.flat().schema().floats());
  replica.copy_model(out);
  return out;
}

}  // namespace

TEST_CASE(
    "A group is tried with what training will sum and copy, and refused where a rank is not "
    "heard") {
  MadeUpGroup good(3), deaf(2);
  try_group(good, 3, torch::zeros({1000}), torch::ones({7}));
  CHECK(good.summed == std::vector<std::int64_t>{1, 1000});
  CHECK(good.copied == std::vector<std::int64_t>{7});
  try_group(good, 3, torch::zeros({10}), torch::empty({0}));
  CHECK(good.copied.size() == 1);
  CHECK(contains(failure_of([&] { try_group(deaf, 3, torch::zeros({10}), torch::empty({0})); }),
                 "do not hear each other"));
}

TEST_CASE("A rank that stays away from a sum fails the others instead of keeping them") {
  constexpr std::chrono::milliseconds silence_max(300);
  RankThreads threads(2);
  MeetingPlace place(2);
  std::vector<std::unique_ptr<DeviceGroup>> groups(2);
  threads.run([&](std::size_t rank) {
    groups[rank] = place.join(rank, torch::kCPU, silence_max);
    try_group(*groups[rank], 2, torch::zeros({100}), torch::zeros({5}));
  });
  CHECK_THROWS_AS(threads.run([&](std::size_t rank) {
    torch::Tensor values = torch::ones({100});
    if (rank == 0) groups[rank]->sum(values);
  }),
                  RankFailure);
}

TEST_CASE("Vectors go through pieces of memory unchanged, whatever their size, there and back") {
  Staging staging(torch::kCPU, /*piece_floats=*/7);
  for (const std::size_t size : {0u, 1u, 6u, 7u, 8u, 14u, 15u, 50u, 3u}) {
    const std::vector<float> values = ramp(size);
    std::vector<float> out(size, -1.0f);
    torch::Tensor tensor = torch::zeros({static_cast<std::int64_t>(size)});
    staging.to_device(values, tensor);
    CHECK(torch::equal(tensor, tensor_of(values)));
    staging.to_host(tensor, out);
    CHECK(out == values);
  }
}

TEST_CASE("LibTorch's kernels descend as the host's pass does, with either optimiser") {
  constexpr std::size_t size = 1000;
  for (const char* text :
       {"learning_rate = 0.05", "learning_rate = 0.05\nweight_decay = 0.01\nnesterov = true",
        "learning_rate = 0.05\nweight_decay = 0.01\nmomentum = 0",
        "kind = 'adamw'\nlearning_rate = 0.01\nweight_decay = 0.1"}) {
    const OptimizerSpec optimizer =
        bars_job(cnn, "[optimizer]\n" + std::string(text) + "\n").optimizer;
    std::vector<float> x = ramp(size);
    OptimizerState state;
    const auto zeros = torch::zeros({static_cast<std::int64_t>(size)});
    const bool has_momentum = optimizer_vectors(optimizer) > 0;
    const DeviceDescent device{tensor_of(x), has_momentum ? zeros.clone() : torch::Tensor(),
                               zeros.clone(), zeros.clone()};
    for (Step step = 1; step <= 20; ++step) {
      std::vector<float> gradient = ramp(size, 0.1f * static_cast<float>(step));
      torch::Tensor(device.gradient).copy_(tensor_of(gradient));
      optimizer_step(optimizer, 0.05, x, state, gradient);
      optimizer_step_on_device(optimizer, 0.05, step, device);
      CHECK((device.gradient == 0).all().item<bool>());
    }
    CHECK(torch::allclose(device.x, tensor_of(x), 1e-4, 1e-6));
    CHECK(state.momentum.empty() != has_momentum);
    if (has_momentum)
      CHECK(torch::allclose(device.momentum, tensor_of(state.momentum), 1e-4, 1e-6));
    CHECK_FALSE(torch::allclose(device.x, tensor_of(ramp(size)), 1e-2, 1e-2));
  }
}

TEST_CASE("A device says of a copy whether it is finite, in the statistics as well") {
  const Job job = bars_job("[model]\nkind = 'resnet20'\n", sgd);
  DeviceReplica replica(job, "", torch::kCPU);
  ModelTraffic traffic({&replica.flat()});
  std::vector<float> copy(replica.flat().schema().floats());
  const auto finite = [&] {
    traffic.begin_copy(copy);
    traffic.settle();
    REQUIRE(traffic.copied());
    return traffic.copy_is_finite();
  };
  CHECK(finite());
  for (torch::Tensor values : {replica.flat().trained(), replica.flat().untrained()})
    for (const float wrong :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const torch::NoGradGuard no_gradient;
      const float right = values[0].item<float>();
      values[0] = wrong;
      CHECK_FALSE(finite());
      values[0] = right;
      CHECK(finite());
    }
}

TEST_CASE("An evaluation that has no room for a batch takes half of it, and says the same") {
  const TemporaryDirectory directory;
  torch::manual_seed(1);
  torch::jit::Module module("Model");
  module.register_parameter("weight", (torch::randn({3, 768}) * 0.03).requires_grad_(), false);
  module.define(
      "def forward(self, x):\n    if x.size(0) > 5:\n        x = x + torch.zeros([1 << 46]).sum()\n"
      "    return torch.matmul(torch.flatten(x, 1), self.weight.t())\n");
  module.save(directory / "small.pt");
  Job job = bars_job("", sgd, 32);
  job.model.kind = ModelSpec::Kind::torchscript;
  const auto figures = [&](std::uint32_t micro_batch) {
    job.training.micro_batch = micro_batch;
    const auto engine = engine_on("cpu", job, directory / "small.pt");
    const auto out = engine->evaluate(model_of(*engine), std::atomic<bool>{false});
    REQUIRE(out);
    return *out;
  };
  const Figures want = figures(4), got = figures(32);
  CHECK(got.accuracy == want.accuracy);
  CHECK(got.loss == doctest::Approx(want.loss).epsilon(1e-5));
}

TEST_CASE("Memory exhausted inside TorchScript is known as such, in the words of what went wrong") {
  const std::runtime_error error(
      "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript "
      "(most recent call last):\n  File \"m.py\", line 3, in forward\n    x = x + 1\n"
      "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
      "CUDA kernel errors might be asynchronously reported at some other API call\n");
  CHECK(is_out_of_memory(error));
  CHECK(sentence_of(error) == "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB");
  CHECK(in_words(error, torch::kCPU).what() ==
        std::string("cpu: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"));
  CHECK_FALSE(is_out_of_memory(std::runtime_error("the shapes do not fit")));
}

TEST_CASE("Main memory that runs out beside a CUDA device is not told as the device's") {
  const torch::Device cuda(torch::kCUDA, 0);
  const OutOfMemory main_memory = in_words(std::bad_alloc(), cuda);
  CHECK(main_memory.memory() == OutOfMemory::Memory::main);
  CHECK(main_memory.what() == std::string("main memory: std::bad_alloc"));
  const OutOfMemory of_device = in_words(std::runtime_error("CUDA out of memory"), cuda);
  CHECK(of_device.memory() == OutOfMemory::Memory::device);
  CHECK(std::string(of_device.what()).starts_with("cuda:0: CUDA out of memory"));
  CHECK(in_words(std::bad_alloc(), torch::kCPU).what() == std::string("cpu: std::bad_alloc"));
}

TEST_CASE("A start that finds no memory may be tried again, as a step's end for want of it may") {
  const TemporaryDirectory directory;
  const std::string file = directory / "large.pt";
  torch::jit::Module module("Model");
  module.register_parameter("weight", torch::zeros({3, 768}).requires_grad_(), false);
  module.define(
      "def forward(self, x):\n    return torch.matmul(torch.flatten(x, 1), self.weight.t()) + "
      "torch.zeros([1 << 46]).sum()\n");
  module.save(file);
  Job job = bars_job("", sgd, 32);
  job.model.kind = ModelSpec::Kind::torchscript;
  job.model.file = file;
  const auto set = std::make_shared<Bars>(job.data);
  for (const char* devices : {"cpu", "cpu,cpu"}) {
    const auto engine = make_torch_engine(
        job, devices, 1, BatchSource(set, DataOrder(job.seed, set->count(), {})), nullptr, file);
    REQUIRE_FALSE(engine);
    CHECK(engine.error().code == "device-failed");
    CHECK_MESSAGE(contains(engine.error().text, "memory there, raise a limit"),
                  engine.error().text);
  }
  const std::optional<Error> checked = check_model(job);
  REQUIRE(checked);
  CHECK(checked->code == "device-failed");
}

TEST_CASE("What LibTorch throws in a step or an evaluation is one sentence, without its stack") {
  const Job job = bars_job(cnn, sgd);
  for (const char* devices : {"cpu", "cpu,cpu"}) {
    const auto set = std::make_shared<Mislabelled>(job.data);
    auto engine = make_torch_engine(job, devices, 1,
                                    BatchSource(set, DataOrder(job.seed, set->count(), {})), set);
    REQUIRE(engine);
    const std::vector<float> model = model_of(**engine);
    (void)(*engine)->step(0, 0.01);
    set->wrong = true;
    for (const std::string& text :
         {failure_of([&] { (void)(*engine)->step(13, 0.01); }),
          failure_of([&] { (void)(*engine)->evaluate(model, std::atomic<bool>{false}); })}) {
      CHECK_MESSAGE(text.ends_with("Target 99 is out of bounds."), text);
      CHECK_MESSAGE(text.find_first_of("\n") == std::string::npos, text);
    }
  }
}

TEST_CASE("fp16 that overflows on the way forward costs a step, not the model's statistics") {
  Job job = bars_job("[model]\nkind = 'resnet20'\n", sgd, 8);
  job.training.precision = TrainingSpec::Precision::fp16;
  DeviceReplica replica(job, "", torch::kCPU);
  const Bars set(job.data);
  HostBatch batch(set.input(), set.target(), 8);
  for (std::size_t i = 0; i < 8; ++i) set.write(i, nullptr, batch.view(), i);
  replica.backward(batch, {0, 8}, 0, 0);
  REQUIRE(replica.unscale_gradient());
  replica.descend(0.01);
  const std::vector<float> before = values_of(replica);

  const torch::Tensor good = batch.inputs.clone();
  int skipped = 0;
  do {
    batch.inputs.fill_(std::numeric_limits<float>::infinity());
    replica.backward(batch, {0, 8}, 0, 1);
    CHECK_FALSE(replica.unscale_gradient());
    CHECK_FALSE(std::isfinite(replica.loss(1)));
    ++skipped;
  } while (replica.may_scale_down() && skipped < 100);
  CHECK(skipped == 17);  // 65536 halved down to 1, and once more in vain
  const std::vector<float> after = values_of(replica);
  std::size_t different = 0;
  for (const Segment& segment : replica.flat().schema().segments()) {
    if (segment.kind == SegmentKind::local) continue;  // counts batches, which these were
    for (std::uint64_t i = segment.offset; i < segment.offset + segment.size; ++i)
      different += after[i] != before[i] ? 1 : 0;
  }
  CHECK(different == 0);
  batch.inputs.copy_(good);
  replica.backward(batch, {0, 8}, 0, 0);
  CHECK(replica.unscale_gradient());
  CHECK(std::isfinite(replica.loss(0)));
}

TEST_CASE("A job's precision and determinism decide the arithmetic of CUDA's libraries") {
  const at::Context& context = at::globalContext();
  for (const bool deterministic : {true, false})
    for (const bool tf32 : {true, false}) {
      Job job = bars_job(cnn, sgd);
      job.training.deterministic = deterministic;
      if (tf32) job.training.precision = TrainingSpec::Precision::tf32;
      engine_on("cpu", job);
      CHECK(context.deterministicCuDNN() == deterministic);
      CHECK(context.allowTF32CuBLAS() == tf32);
      CHECK(context.allowTF32CuDNN() == tf32);
    }
}

TEST_CASE("CUDA's libraries find their settings before a thread begins, and a user's own stay") {
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  setenv("TORCH_NCCL_ENABLE_MONITORING", "1", 1);
  set_library_environment();
  CHECK(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")) == ":4096:8");
  CHECK(std::string(std::getenv("TORCH_NCCL_RETHROW_CUDA_ERRORS")) == "0");
  CHECK(std::string(std::getenv("TORCH_NCCL_ENABLE_MONITORING")) == "1");
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  set_library_environment();
  CHECK(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")) == ":16:8");
}
