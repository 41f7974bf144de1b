// Figures of one card: the engine against a bare loop, training with gossip against without, the
// longest time that each call keeps the training thread, and the memory at the end. Cases of
// gpu_tests that compare bits are in gpu_tests.cpp; these hold no speed to a bound, they report.
#include "tests/gpu/gpu_support.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "models/devices/cuda_runtime.h"
#include "models/devices/device_work.h"
#include "models/devices/host_batch.h"
#include "models/networks/loss.h"

namespace gossipd::gpu {

namespace {

using Clock = std::chrono::steady_clock;
using torch::Tensor;

// Of the host and of the stream that trains; what else still crosses the bus is not waited for.
double seconds_of(const std::function<void()>& work) {
  drain();
  const auto began = Clock::now();
  work();
  Mark trained(device());
  trained.set();
  trained.wait();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct DeviceMemory {
  double free_gib = 0, used_gib = 0;
};
DeviceMemory device_memory() {
  std::size_t free = 0, total = 0;
  const CudaRuntime& cuda = CudaRuntime::of_process();
  if (cuda.memory_info == nullptr || cuda.memory_info(&free, &total) != 0) return {};
  constexpr double gib = 1ull << 30;
  return {static_cast<double>(free) / gib, static_cast<double>(total - free) / gib};
}

// The usual loop without gossipd, its samples on the device already.
class BareLoop {
 public:
  explicit BareLoop(const Job& job)
      : kind_(job.loss.kind),
        network_(make_network(job.model, {job.data.shape, outputs_of(job)}, job.seed)) {
    network_->to(device());
    network_->train(true);
    optimizer_ = std::make_unique<torch::optim::SGD>(
        network_->parameters(), torch::optim::SGDOptions(0.001).momentum(job.optimizer.momentum));
    const Made set(job.data);
    HostBatch batch(set.input(), set.target(), job.batch);
    for (std::size_t i = 0; i < job.batch; ++i) set.write(i, nullptr, batch.view(), i);
    inputs_ = batch.inputs.to(device());
    targets_ = batch.targets.to(device());
  }
  void step() {
    optimizer_->zero_grad();
    loss_of(kind_, *network_, network_->forward(inputs_), targets_).backward();
    optimizer_->step();
  }

 private:
  const LossSpec::Kind kind_;
  std::shared_ptr<Network> network_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  Tensor inputs_, targets_;
};

// The longest time that a call took, by its name, in milliseconds.
class Stalls {
 public:
  template <typename Call>
  auto of(const char* cause, const Call& call) {
    struct Timer {
      double& longest;
      const Clock::time_point began = Clock::now();
      ~Timer() {
        longest = std::max(longest,
                           std::chrono::duration<double, std::milli>(Clock::now() - began).count());
      }
    } timer{longest_ms_[cause]};
    return call();
  }
  [[nodiscard]] nlohmann::json json() const { return longest_ms_; }

 private:
  std::map<std::string, double> longest_ms_;
};

// Training as a node does it: a snapshot is asked for as soon as the last update is in the model.
class Gossiping {
 public:
  explicit Gossiping(const Job& job)
      : engine_(engine(job)), out_(engine_->schema().floats()), update_(out_.size(), 1e-6f) {}
  [[nodiscard]] std::size_t floats() const { return out_.size(); }
  void step() {
    stalls_.of("step", [&] { engine_->step(0, 0.001); });
  }
  // The boundary that follows a step: what trainer.cpp does there.
  void boundary() {
    if (!copying_ && stalls_.of("ready_to_copy", [&] { return engine_->ready_to_copy(); })) {
      stalls_.of("begin_copy", [&] { engine_->begin_copy(out_); });
      copying_ = true;
    } else if (copying_ && stalls_.of("copied", [&] { return engine_->copied(); })) {
      stalls_.of("copy_is_finite", [&] { engine_->copy_is_finite(); });
      stalls_.of("add_to_model", [&] { engine_->add_to_model(update_); });
      copying_ = false;
      ++exchanges_;
    }
  }
  void settle() {
    engine_->settle();
    if (std::exchange(copying_, false)) ++exchanges_;
  }
  [[nodiscard]] int exchanges() const { return exchanges_; }
  void forget_stalls() { stalls_ = {}; }
  [[nodiscard]] nlohmann::json stalls() const { return stalls_.json(); }

 private:
  std::unique_ptr<GradientEngine> engine_;
  std::vector<float> out_, update_;
  Stalls stalls_;
  bool copying_ = false;
  int exchanges_ = 0;
};

}  // namespace

TEST_CASE("figures: the engine's steps a second, in parts of a bare loop's") {
  const int pairs = is_dry() ? 1 : 7, steps = is_dry() ? 2 : 50;
  struct Row {
    const char* name;
    Job job;
  };
  const std::vector<Row> rows = {
      {"cnn, batch 256", job("kind = 'cnn'\n", images, sgd, is_dry() ? 4 : 256)},
      {"gpt 10 M, 16 x 256 tokens",
       job(is_dry() ? "kind = 'gpt'\ndim = 24\ndepth = 1\nheads = 2\n" : "kind = 'gpt'\n",
           tokens(is_dry() ? 16 : 256), sgd, is_dry() ? 2 : 16)}};
  for (const Row& row : rows) {
    BareLoop bare(row.job);
    const auto ours = engine(row.job);
    const auto bare_steps = [&] {
      for (int i = 0; i < steps; ++i) bare.step();
    };
    const auto our_steps = [&] {
      for (int i = 0; i < steps; ++i) ours->step(0, 0.001);
    };
    bare_steps();
    our_steps();
    std::vector<double> ratios;
    for (int pair = 0; pair < pairs; ++pair)
      ratios.push_back(seconds_of(bare_steps) / seconds_of(our_steps));
    figures()["engine_to_bare_loop"][row.name] = median(ratios);
    CHECK(median(ratios) > 0);
  }
}

TEST_CASE("figures: training with gossip, in parts of training without, and the longest stalls") {
  struct Row {
    std::string name;
    std::string model;
    double gib;  // on the device, with SGD: model, gradient, momentum, evaluated model, update
    int steps;
  };
  const std::vector<Row> rows =
      is_dry()
          ? std::vector<Row>{{"dry", "kind = 'gpt'\ndim = 24\ndepth = 1\nheads = 2\n", 0, 4}}
          : std::vector<Row>{{"100 M", "kind = 'gpt'\ndim = 832\ndepth = 12\nheads = 13\n", 6, 40},
                             {"1 B", "kind = 'gpt'\ndim = 2048\ndepth = 20\nheads = 16\n", 36, 20}};
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const double free_gib = device_memory().free_gib;
    if (free_gib < row.gib) {
      not_covered("gossip at " + row.name + ": the card has " + std::to_string(free_gib) +
                  " GiB free and " + std::to_string(row.gib) + " are needed");
      continue;
    }
    Gossiping node(job(row.model, tokens(is_dry() ? 16 : 256),
                       sgd + "[training]\nprecision = '" + (is_dry() ? "fp32" : "bf16") + "'\n",
                       is_dry() ? 2 : 8));
    const auto train = [&](bool gossip) {
      for (int i = 0; i < row.steps; ++i) {
        node.step();
        if (gossip) node.boundary();
      }
    };
    train(true);  // makes what is made once
    node.settle();
    node.forget_stalls();
    std::vector<double> ratios;
    for (int pair = 0; pair < (is_dry() ? 1 : 5); ++pair) {
      const double off = seconds_of([&] { train(false); });
      const double on = seconds_of([&] { train(true); });
      node.settle();
      ratios.push_back(off / on);
    }
    CHECK(node.exchanges() > 0);
    nlohmann::json& out = figures()["gossip"][row.name];
    out["parameters"] = node.floats();
    out["on_to_off"] = median(ratios);
    out["steps_an_exchange"] =
        static_cast<double>(row.steps) * static_cast<double>(1 + ratios.size()) / node.exchanges();
    out["longest_ms"] = node.stalls();
    out["device_memory_gib"] = device_memory().used_gib;
  }
}

}  // namespace gossipd::gpu
