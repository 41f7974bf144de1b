// The weights of a TorchScript file, read where they lie: what they cost in memory, and that they
// are what LibTorch itself loads.
#include <torch/script.h>
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "models/networks/torchscript.h"
#include "models_test_support.h"

using namespace gossipd;
using test::contains;
using test::TemporaryDirectory;

namespace {

std::atomic<std::size_t> most_held{0};

std::size_t held() {
  const struct mallinfo2 now = mallinfo2();
  return now.uordblks + now.hblkhd;
}

constexpr std::int64_t rows = 1024, columns = 1024;  // of a tensor
constexpr std::size_t tensor_bytes = rows * columns * sizeof(float);
constexpr std::size_t tensors = 8;
constexpr std::size_t small_things = 2 << 20;  // classes, names, the file's directory

std::string save(torch::jit::Module& module, const TemporaryDirectory& directory) {
  module.define("def forward(self, x):\n    return x\n");
  std::string path = directory / "model.pt";
  module.save(path);
  return path;
}

std::vector<float> values_of(const Weights& weights, const std::string& name) {
  const auto& tensor = weights.tensors.at(name);
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= extent;
  std::vector<float> out(static_cast<std::size_t>(count));
  tensor.copy_to(out);
  return out;
}

std::vector<float> values_of(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kFloat32).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

Weights read(const std::string& path) {
  auto weights = read_torchscript_weights(path);
  REQUIRE_MESSAGE(weights, (weights ? "" : weights.error().text));
  return std::move(*weights);
}

}  // namespace

// LibTorch's allocator of host memory asks here; what malloc has given out by then is looked at.
extern "C" int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) noexcept {
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) return ENOMEM;
  *out = memory;
  most_held = std::max(most_held.load(), held());
  return 0;
}

TEST_CASE(
    "Weights of a TorchScript file to begin with cost one tensor beside the model that takes "
    "them") {
  const TemporaryDirectory directory;
  std::string path;
  std::vector<Segment> segments;
  std::vector<float> want;
  {
    torch::manual_seed(3);
    torch::jit::Module module("Model");
    for (std::size_t i = 0; i < tensors; ++i) {
      const std::string name = "layer" + std::to_string(i);
      const torch::Tensor weight = torch::randn({rows, columns});
      segments.push_back(
          {name, {rows, columns}, i * rows * columns, rows * columns, SegmentKind::parameter});
      const auto values = values_of(weight);
      want.insert(want.end(), values.begin(), values.end());
      module.register_parameter(name, weight.clone().requires_grad_(), false);
    }
    path = save(module, directory);
  }
  const auto schema = Schema::build(std::move(segments));
  REQUIRE(schema);
  std::vector<float> model(schema->floats());
  std::ignore = torch::jit::load(path);  // what LibTorch keeps for good, it keeps from now on
  const std::size_t before = held();
  most_held = 0;
  std::ignore = torch::jit::load(path);
  REQUIRE(most_held.load() > before + (tensors - 1) * tensor_bytes);  // or nothing is counted here

  most_held = 0;
  const Weights weights = read(path);
  CHECK(held() < before + small_things);
  CHECK_FALSE(take_weights(weights, *schema, model).has_value());
  // of a record, and of the tensor that is made of it
  CHECK(most_held.load() < before + 2 * tensor_bytes + small_things);
  CHECK(model == want);
}

TEST_CASE(
    "Weights of a TorchScript file are what LibTorch loads: views, tied tensors, counters, modules "
    "in modules") {
  const TemporaryDirectory directory;
  torch::manual_seed(5);
  torch::jit::Module inner("Inner"), module("Model");
  const torch::Tensor wide = torch::randn({6, 8});
  inner.register_parameter("turned", wide.t().detach().requires_grad_(), false);
  inner.register_buffer("running_mean", wide.slice(1, 2, 7, 2).detach());
  inner.register_buffer("seen", torch::tensor({7, 9}, torch::kInt64));
  inner.register_buffer("empty", torch::zeros({0}));
  inner.register_buffer("mask", torch::full({3}, -std::numeric_limits<float>::infinity()));
  const torch::Tensor tied = torch::randn({4, 3}).requires_grad_();
  module.register_parameter("first", tied, false);
  inner.register_parameter("again", tied, false);
  inner.register_attribute("sizes", c10::ListType::ofInts(), c10::List<std::int64_t>({1, 2, 3}));
  inner.register_attribute(
      "names", c10::DictType::create(c10::StringType::get(), c10::ListType::ofTensors()), [] {
        c10::Dict<std::string, c10::List<torch::Tensor>> names;
        names.insert("a", c10::List<torch::Tensor>({torch::ones({2})}));
        return c10::IValue(names);
      }());
  module.register_module("inner", inner);
  const std::string path = save(module, directory);

  const Weights weights = read(path);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors) names.push_back(name);
  CHECK(names == std::vector<std::string>{"first", "inner.empty", "inner.running_mean",
                                          "inner.seen", "inner.turned"});
  const ModelTensors loaded = tensors_of(torch::jit::load(path));
  for (const auto* list : {&loaded.parameters, &loaded.buffers})
    for (const ModelTensors::Named& original : *list)
      if (weights.tensors.contains(original.name)) {
        CAPTURE(original.name);
        CHECK(weights.tensors.at(original.name).shape == original.tensor.sizes().vec());
        CHECK(values_of(weights, original.name) == values_of(original.tensor));
      }
}

TEST_CASE("Reading weights leaves their file alone, which they outlive") {
  const TemporaryDirectory directory;
  torch::jit::Module module("Model");
  module.register_parameter("weight", torch::full({500}, 2.5f).requires_grad_(), false);
  const std::string path = save(module, directory);
  const std::string bytes = test::read_file(path);
  Weights weights = read(path);
  CHECK(test::read_file(path) == bytes);
  std::filesystem::remove(path);
  CHECK(values_of(weights, "weight") == std::vector<float>(500, 2.5f));
}

TEST_CASE(
    "A TorchScript file that is cut or damaged gives no weights, and a reason that names it") {
  const TemporaryDirectory directory;
  torch::jit::Module module("Model");
  module.register_parameter("weight", torch::randn({5000}).requires_grad_(), false);
  const std::string path = save(module, directory);
  const std::string whole = test::read_file(path);
  for (const std::string& damaged :
       {whole.substr(0, whole.size() / 2), whole.substr(0, 100), whole.substr(0, 4) + "rubbish"}) {
    test::write_file(path, damaged);
    const auto weights = read_torchscript_weights(path);
    REQUIRE(!weights);
    CHECK(weights.error().code == "bad-weights");
    CHECK_MESSAGE(
        contains(weights.error().text, path + ": is a TorchScript file cut short, or damaged"),
        weights.error().text);
  }
}
