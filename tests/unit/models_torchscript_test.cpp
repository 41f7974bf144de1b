// TorchScript files as models, and the engine's options, on a data set made up here.
#include <torch/script.h>
#include <torch/torch.h>
// Torch brings a CHECK of its own; doctest's has to win.
#undef CHECK

#include <doctest/doctest.h>

#include <cmath>

#include "models/checkpoint/export.h"
#include "models/files/model_file.h"
#include "models/networks/flat_model.h"
#include "models/networks/torchscript.h"
#include "models/training/torch_engine.h"
#include "models_test_support.h"

using namespace gossipd;
using test::contains;
using test::parse_job;
using test::TemporaryDirectory;

namespace {

// Four floats a sample; the class is where the largest of the first three lies, as a number it is
// their sum.
class Points : public DataSet {
 public:
  explicit Points(const DataSpec& spec) : DataSet(spec) {}
  std::size_t count() const override { return 96; }
  void write(std::size_t index, const Variation*, const Batch& batch,
             std::size_t at) const override {
    const auto inputs = place<float>(batch.inputs, at, 4);
    for (std::size_t i = 0; i < 4; ++i)
      inputs[i] = static_cast<float>(std::sin(static_cast<double>(7 * index + 3 * i + 1)));
    if (classes() == 0)
      place<float>(batch.targets, at, 1)[0] = inputs[0] + inputs[1] + inputs[2];
    else
      place<std::int64_t>(batch.targets, at, 1)[0] =
          std::max_element(inputs.begin(), inputs.begin() + 3) - inputs.begin();
  }
};

Job points_job(const std::string& rest, int classes = 3) {
  return parse_job(
      "name = 'points'\nseed = 5\nbatch = 24\nbudget_samples = 100000\n"
      "[data]\nkind = 'safetensors'\nshape = [4]\ntrain_files = ['x']\nclasses = " +
      std::to_string(classes) +
      "\n"
      "[optimizer]\nlearning_rate = 0.1\n[schedule]\nkind = 'constant'\n" +
      rest);
}

Result<std::unique_ptr<GradientEngine>> try_engine(const Job& job, const std::string& file = "") {
  const auto set = std::make_shared<Points>(job.data);
  return make_torch_engine(job, "cpu", 1, BatchSource(set, DataOrder(job.seed, set->count(), {})),
                           set, file);
}

std::unique_ptr<GradientEngine> engine_of(const Job& job, const std::string& file = "") {
  auto engine = try_engine(job, file);
  REQUIRE_MESSAGE(engine, (engine ? "" : engine.error().text));
  return std::move(*engine);
}

std::string refusal_of(const Job& job, const std::string& file) {
  const auto checked = check_torchscript(job, file);
  REQUIRE(checked);
  const auto engine = try_engine(job, file);
  REQUIRE(!engine);
  CHECK(engine.error().code == "bad-model");
  return engine.error().text;
}

std::vector<float> model_of(Engine& engine) {
  std::vector<float> out(engine.schema().floats());
  engine.copy_model(out);
  return out;
}

std::vector<float> train(Engine& engine, Step from, Step to, double rate = 0.1) {
  for (Step step = from; step < to; ++step) engine.step(24 * step, rate);
  return model_of(engine);
}

// A layer of `outputs`, with dropout; `forward` and more as TorchScript.
std::string script(const TemporaryDirectory& directory, int outputs, const std::string& source,
                   bool trained = true) {
  torch::manual_seed(1);
  torch::jit::Module module("Model");
  if (trained)
    module.register_parameter("weight", (torch::randn({outputs, 4}) * 0.3).requires_grad_(), false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_buffer("seen", torch::zeros({1}, torch::kInt64));
  module.define(source);
  const std::string path = directory / "model.pt";
  module.save(path);
  return path;
}

const std::string linear =
    "def forward(self, x):\n    self.seen += 1\n    return torch.dropout(torch.matmul(x, "
    "self.weight.t()), 0.2, self.training)\n";
const std::string by_script = "[model]\nkind = 'torchscript'\nfile = 'model.pt'\n";

}  // namespace

TEST_CASE(
    "A TorchScript model starts from its file's parameters, learns, and is the same for every "
    "node") {
  const TemporaryDirectory directory;
  const std::string file = script(directory, 3, linear);
  const Job job = points_job(by_script);
  const auto engine = engine_of(job, file);
  REQUIRE(engine->schema().segments().size() == 2);
  CHECK(engine->schema().segments()[0].name == "weight");
  CHECK(engine->schema().segments()[1].kind == SegmentKind::local);
  torch::jit::Module original = torch::jit::load(file);
  CHECK(model_of(*engine)[5] == original.attr("weight").toTensor().flatten()[5].item<float>());

  const std::atomic<bool> cancel{false};
  const double before = engine->evaluate(model_of(*engine), cancel)->loss;
  const auto model = train(*engine, 0, 60);
  const Figures after = engine->evaluate(model, cancel).value();
  CHECK(after.loss < 0.7 * before);
  CHECK(after.accuracy.value() > 0.8);
  CHECK(train(*engine_of(job, file), 0, 60) == model);
}

TEST_CASE("A TorchScript model with dropout resumes bit for bit") {
  const TemporaryDirectory directory;
  const std::string file = script(directory, 3, linear);
  const Job job = points_job(by_script);
  const auto whole = engine_of(job, file);
  const auto middle = train(*whole, 0, 5);
  const OptimizerState state = whole->optimizer_state();
  const auto want = train(*whole, 5, 9);
  const auto resumed = engine_of(job, file);
  train(*resumed, 0, 2);  // whatever it did before
  resumed->replace_model(middle);
  resumed->restore_optimizer(state);
  CHECK(train(*resumed, 5, 9) == want);
}

TEST_CASE("Nodes draw other dropout, whether each has its own files or they divide one set") {
  const TemporaryDirectory directory;
  // The gradient says which weights were dropped, and nothing of the samples.
  const std::string file =
      script(directory, 40,
             "def forward(self, x):\n    return torch.dropout(self.weight, 0.5, self.training)\n"
             "def loss(self, outputs, targets):\n    return outputs.mean()\n");
  const Job job = points_job(by_script + "[loss]\nkind = 'model'\n");
  const auto set = std::make_shared<Points>(job.data);
  const auto drawn = [&](std::uint64_t walker, std::size_t first_bucket = 2, Samples position = 0) {
    auto engine = make_torch_engine(
        job, "cpu", 1, BatchSource(set, DataOrder(job.seed, set->count(), {0, 1, walker})), nullptr,
        file);
    REQUIRE_MESSAGE(engine, (engine ? "" : engine.error().text));
    std::vector<bool> every_other(96);
    for (std::size_t i = first_bucket; i < 96; i += 2) every_other[i] = true;
    if (first_bucket < 2)
      (*engine)->restrict_to(std::make_shared<const std::vector<bool>>(every_other));
    std::vector<float> gradient((*engine)->schema().floats());
    (*engine)->gradient(model_of(**engine), position, 24, gradient);
    return gradient;
  };
  CHECK(drawn(7) == drawn(7));
  CHECK(drawn(7) != drawn(8));
  CHECK(drawn(7) != drawn(7, 2, 24));
  CHECK(drawn(0, 1) == drawn(0, 1));
  CHECK(drawn(0, 0) != drawn(0, 1));
}

TEST_CASE("A neighbour's model leaves alone what never leaves a node") {
  const TemporaryDirectory directory;
  const Job job = points_job(by_script);
  auto engine = engine_of(job, script(directory, 3, linear));
  train(*engine, 0, 3);
  const std::vector<float> before = model_of(*engine);
  const Segment& seen = engine->schema().segments()[1];
  REQUIRE(before[seen.offset] == 3);
  TrainerOptions options;
  options.nice = 0;
  const auto trainer = Trainer::with_engine(job, options, std::move(engine));
  test::Desk desk;
  trainer->start(desk.callbacks(), true);
  trainer->give({std::vector<float>(before.size(), 0.0f), true, 1, false});
  const Snapshot taken = desk.snapshot();
  trainer->stop();
  CHECK(taken.model[seen.offset] == 3);
  CHECK(taken.model[0] == 0);
}

TEST_CASE("A model's own loss is what is minimised") {
  const TemporaryDirectory directory;
  const std::string file = script(directory, 1,
                                  linear +
                                      "def loss(self, outputs, targets):\n    return "
                                      "(outputs.flatten() - targets).abs().mean()\n");
  const Job job = points_job(by_script + "[loss]\nkind = 'model'\n", 0);
  const auto engine = engine_of(job, file);
  const std::atomic<bool> cancel{false};
  const Figures before = engine->evaluate(model_of(*engine), cancel).value();
  const Figures after = engine->evaluate(train(*engine, 0, 60, 0.02), cancel).value();
  CHECK(after.loss < 0.5 * before.loss);
  CHECK(!after.accuracy);
}

TEST_CASE("What cannot be trained is refused in one sentence") {
  const TemporaryDirectory directory;
  const Job job = points_job(by_script);
  test::write_file(directory / "text.pt", "not a model");
  CHECK(contains(refusal_of(job, directory / "text.pt"), "text.pt: is no TorchScript file"));
  CHECK(contains(
      refusal_of(job, script(directory, 3, "def forward(self, x):\n    return x\n", false)),
      "no parameters"));
  CHECK(contains(refusal_of(job, script(directory, 5, linear)),
                 "3 classes, the model has 5 outputs"));
  CHECK(contains(
      refusal_of(job, script(directory, 3, "def forward(self, x):\n    return (x, self.weight)\n")),
      "returns Tuple"));
  CHECK(contains(
      refusal_of(job, script(directory, 3,
                             "def forward(self, x):\n    return torch.matmul(x, self.weight)\n")),
      "mat1 and mat2"));
  CHECK(contains(
      refusal_of(
          job,
          script(directory, 3,
                 "def forward(self, x):\n    return torch.matmul(x, self.weight.t()).detach()\n")),
      "does not depend"));
  CHECK(contains(
      refusal_of(points_job(by_script + "[loss]\nkind = 'model'\n"), script(directory, 3, linear)),
      "no method loss"));
  const std::string vector_loss = "def loss(self, outputs, targets):\n    return outputs.sum(1)\n";
  CHECK(contains(refusal_of(points_job(by_script + "[loss]\nkind = 'model'\n"),
                            script(directory, 3, linear + vector_loss)),
                 "more than one number"));
}

TEST_CASE("Parameters that overlap in memory are refused by name, tied ones are one") {
  const TemporaryDirectory directory;
  const std::string file = directory / "model.pt";
  const auto save = [&file](const torch::Tensor& first, const torch::Tensor& second) {
    torch::jit::Module module("Model");
    module.register_parameter("weight", first.detach().requires_grad_(), false);
    module.register_parameter("other", second.detach().requires_grad_(), false);
    module.define(
        "def forward(self, x):\n    return torch.matmul(x, self.weight.t()) + self.other.sum()\n");
    module.save(file);
  };
  const torch::Tensor memory = torch::randn({8, 4});
  const auto rows = [&](std::int64_t first) { return memory.slice(0, first, first + 3); };
  const std::string refused = "'other' overlaps 'weight' in memory";
  save(rows(0), rows(2));
  CHECK(contains(refusal_of(points_job(by_script), file), refused));
  save(rows(0), rows(0).t());
  CHECK(contains(refusal_of(points_job(by_script), file), refused));
  save(rows(0), rows(3));
  CHECK(engine_of(points_job(by_script), file)->schema().segments().size() == 2);
  save(rows(0), rows(0));
  CHECK(engine_of(points_job(by_script), file)->schema().segments().size() == 1);
}

TEST_CASE("A parameter that is not finite is refused by name, trained or not; a mask is none") {
  const TemporaryDirectory directory;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::string file = directory / "model.pt";
  const auto save = [&file](float trained, float frozen, float mask) {
    torch::jit::Module module("Model");
    module.register_parameter("weight", torch::full({3, 4}, trained).requires_grad_(), false);
    module.register_parameter("fixed", torch::full({2}, frozen), false);
    module.register_buffer("mask", torch::full({2}, mask));
    module.define("def forward(self, x):\n    return torch.matmul(x, self.weight.t())\n");
    module.save(file);
  };
  Job job = points_job(by_script);
  save(std::nanf(""), 0, 0);
  const std::string text = refusal_of(job, file);
  CHECK_MESSAGE(contains(text, file + ": parameter 'weight' holds NaN or infinity"), text);
  save(0.5f, -infinity, 0);
  CHECK(contains(refusal_of(job, file), "parameter 'fixed' holds NaN or infinity"));
  job.start_from = "weights.safetensors";  // whose values take their place
  CHECK(try_engine(job, file));
  save(0.5f, 0.5f, -infinity);
  CHECK(try_engine(points_job(by_script), file));
}

TEST_CASE("Of what LibTorch says, the sentence is told that says what is wrong") {
  CHECK(sentence_of(std::runtime_error("a reason\nand a stack")) == "a reason");
  CHECK(sentence_of(std::runtime_error(
            "\nUnknown builtin op: aten::new_one.\nHere are some suggestions:\n")) ==
        "Unknown builtin op: aten::new_one.");
  CHECK(sentence_of(std::runtime_error("The following operation failed in the TorchScript "
                                       "interpreter.\nTraceback\nRuntimeError: a reason\n")) ==
        "RuntimeError: a reason");
  CHECK(sentence_of(std::runtime_error("\n")).empty());
}

TEST_CASE("A job names its TorchScript file by content, and refuses another") {
  const TemporaryDirectory directory;
  script(directory, 3, linear);
  const std::string text = "name = 'x'\nbudget_samples = 10\n" + by_script;
  test::write_file(directory / "job.toml", text);
  const auto job = Job::load(directory / "job.toml");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  const JobFile content = identify_file(directory / "model.pt").value();
  CHECK(job->model.content == content);
  const Job travelled = parse_job(job->canonical_text());
  CHECK(travelled.model.content == content);
  CHECK(travelled.model.file == "model.pt");
  CHECK(travelled.hash() == job->hash());

  test::write_file(directory / "job.toml", job->canonical_text());
  CHECK(Job::load(directory / "job.toml"));
  script(directory, 4, linear);
  const auto other = Job::load(directory / "job.toml");
  REQUIRE(!other);
  CHECK(contains(other.error().text, "file_hash"));
  std::filesystem::remove(directory / "model.pt");
  CHECK(contains(Job::load(directory / "job.toml").error().text, "no such file"));
}

TEST_CASE("Micro-batches give the gradient of the whole batch") {
  const auto gradient = [](const std::string& training) {
    const auto engine =
        engine_of(points_job("[model]\nkind = 'mlp'\nhidden = [8]\n[training]\n" + training));
    std::vector<float> out(engine->schema().floats());
    const double loss = engine->gradient(model_of(*engine), 0, 24, out);
    return std::pair(torch::tensor(out), loss);
  };
  const auto [whole, loss] = gradient("");
  const auto [parts, loss_of_parts] = gradient("micro_batch = 7\n");
  CHECK(loss_of_parts == doctest::Approx(loss));
  CHECK(torch::allclose(whole, parts, 1e-4, 1e-6));
}

TEST_CASE("A gradient is cut to the norm of the job, and not when it is shorter") {
  const auto moved = [](const std::string& training) {
    const auto engine =
        engine_of(points_job("[model]\nkind = 'mlp'\nhidden = [8]\n[training]\n" + training));
    const torch::Tensor before = torch::tensor(model_of(*engine));
    engine->step(0, 1.0);
    return torch::tensor(model_of(*engine)) - before;
  };
  const torch::Tensor free = moved("");
  CHECK(free.norm().item<double>() > 0.02);
  const torch::Tensor cut = moved("clip_norm = 0.01\n");
  CHECK(cut.norm().item<double>() == doctest::Approx(0.01).epsilon(1e-3));
  CHECK(torch::allclose(cut / cut.norm(), free / free.norm(), 1e-3, 1e-4));
  CHECK(torch::equal(moved("clip_norm = 100.0\n"), free));
}

TEST_CASE("The gradient of a large model is cut to the norm of the job as exactly") {
  const TemporaryDirectory directory;
  torch::jit::Module module("Model");
  module.register_parameter("weight", torch::zeros({1 << 23}).requires_grad_(), false);
  module.define(
      "def forward(self, x):\n    return torch.flatten(x, 1)[:, :3] * self.weight.sum()\n");
  module.save(directory / "model.pt");
  Job job = points_job("[model]\nkind = 'mlp'\n[training]\nclip_norm = 0.01\n");
  job.model.kind = ModelSpec::Kind::torchscript;
  const auto engine = engine_of(job, directory / "model.pt");
  engine->step(0, 1.0);  // every value of the gradient is the same
  const torch::Tensor moved = torch::tensor(model_of(*engine)).to(torch::kFloat64);
  CHECK(moved.norm().item<double>() / 0.01 == doctest::Approx(1).epsilon(1e-4));
}

TEST_CASE("In bf16 the parameters stay fp32 and the model learns") {
  const auto job =
      points_job("[model]\nkind = 'mlp'\nhidden = [16]\n[training]\nprecision = 'bf16'\n");
  const auto engine = engine_of(job);
  const std::atomic<bool> cancel{false};
  const auto model = train(*engine, 0, 120);
  CHECK(engine->evaluate(model, cancel)->accuracy.value() > 0.85);
  const auto exact = engine_of(points_job("[model]\nkind = 'mlp'\nhidden = [16]\n"));
  const auto fp32 = train(*exact, 0, 120);
  CHECK(fp32 != model);
  CHECK(exact->evaluate(fp32, cancel)->accuracy.value() > 0.85);
}

TEST_CASE("Deterministic training runs where every operation has a deterministic kernel") {
  const auto job =
      points_job("[model]\nkind = 'mlp'\nhidden = [8]\n[training]\ndeterministic = true\n");
  CHECK(train(*engine_of(job), 0, 5) == train(*engine_of(job), 0, 5));
  CHECK(at::globalContext().deterministicAlgorithms());
  engine_of(points_job("[model]\nkind = 'mlp'\nhidden = [8]\n"));
  CHECK(!at::globalContext().deterministicAlgorithms());
}

// ---- the way out ----

namespace {

// The model of a job as made from its seed, every parameter a little different, as weights.
Weights some_weights(const Job& job, const std::shared_ptr<Network>& network) {
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(3);
  Weights weights{"made here", {}, {{"job", job.canonical_text()}, {"step", "7"}}};
  const auto tensors = network->tensors();
  for (const auto* list : {&tensors.parameters, &tensors.buffers})
    for (const auto& [name, tensor] : *list) {
      if (tensor.scalar_type() == torch::kFloat32)
        torch::Tensor(tensor).add_(torch::rand_like(tensor) * 0.1);
      const torch::Tensor values = tensor.to(torch::kFloat32).contiguous().clone();
      weights.tensors.emplace(
          name, Weights::Tensor{values.sizes().vec(), [values](std::span<float> out) {
                                  std::copy_n(values.data_ptr<float>(), out.size(), out.data());
                                }});
    }
  return weights;
}

}  // namespace

TEST_CASE(
    "A built-in model that was exported computes in TorchScript what it computes here, for a batch "
    "of any size") {
  const TemporaryDirectory directory;
  const std::string
      images = "[data]\nkind = 'cifar10'\n",
      text = "[data]\nkind = 'text'\nlength = 8\ntrain_files = ['x']\nvalidation_fraction = 0.1\n";
  for (const std::string& rest :
       {"[model]\nkind = 'mlp'\n" + images, "[model]\nkind = 'cnn'\n" + images,
        "[model]\nkind = 'resnet20'\n" + images,
        "[model]\nkind = 'vit'\ndim = 16\nheads = 2\ndepth = 2\n" + images,
        "[model]\nkind = 'gpt'\ndim = 16\nheads = 2\ndepth = 2\n" + text}) {
    CAPTURE(rest);
    const Job job = parse_job("name = 'x'\nbudget_samples = 10\n" + rest);
    const auto network = make_network(job.model, {job.data.shape, outputs_of(job)}, job.seed);
    const Weights weights = some_weights(job, network);
    const auto error = export_torchscript({weights, job, "", directory / "out.pt"});
    REQUIRE_MESSAGE(!error, (error ? error->text : ""));

    torch::jit::ExtraFilesMap words{{"gossipd/step", ""}};
    torch::jit::Module module = torch::jit::load(directory / "out.pt", torch::kCPU, words);
    CHECK(words["gossipd/step"] == "7");
    torch::manual_seed(4);
    const torch::Tensor inputs = job.data.vocabulary > 0
                                     ? torch::randint(256, {5, 8}, torch::kInt64)
                                     : torch::rand({5, 3, 32, 32});
    network->train(false);
    const torch::NoGradGuard no_gradient;
    CHECK(
        torch::allclose(module.forward({inputs}).toTensor(), network->forward(inputs), 1e-4, 1e-5));

    // … and is what another job can begin with.
    const auto again = read_torchscript_weights(directory / "out.pt");
    REQUIRE_MESSAGE(again, (again ? "" : again.error().text));
    FlatModel flat(make_network(job.model, {job.data.shape, outputs_of(job)}, 2)->tensors());
    std::vector<float> there(flat.schema().floats()), here(flat.schema().floats());
    CHECK_FALSE(take_weights(*again, flat.schema(), there).has_value());
    CHECK_FALSE(take_weights(weights, flat.schema(), here).has_value());
    CHECK(there == here);
  }
}

TEST_CASE(
    "A TorchScript model that was exported has the weights of the checkpoint, and needs the file "
    "it came from") {
  const TemporaryDirectory directory;
  const std::string file = script(directory, 3, linear);
  test::write_file(
      directory / "job.toml",
      "name = 'x'\nbudget_samples = 10\n" + by_script +
          "[data]\nkind = 'safetensors'\nshape = [4]\ntrain_files = ['x']\nclasses = 3\n");
  const auto job = Job::load(directory / "job.toml");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  const auto half = [](std::span<float> out) { std::ranges::fill(out, 0.5f); };
  const Weights weights{"made here", {{"weight", {{3, 4}, half}}}, {}};
  const auto error = export_torchscript({weights, *job, file, directory / "out.pt"});
  REQUIRE_MESSAGE(!error, (error ? error->text : ""));
  torch::jit::Module module = torch::jit::load(directory / "out.pt");
  // without dropout
  CHECK(torch::equal(module.forward({torch::ones({2, 4})}).toTensor(), torch::full({2, 3}, 2.0)));

  script(directory, 4, linear);
  const auto other = export_torchscript({weights, *job, file, directory / "none.pt"});
  REQUIRE(other);
  CHECK(contains(other->text, "is not the model that the checkpoint was trained with"));
  CHECK_FALSE(std::filesystem::exists(directory / "none.pt"));
}

TEST_CASE("A TorchScript model that gives NaN for zeros is exported as any other") {
  const TemporaryDirectory directory;
  const std::string file = script(
      directory, 3,
      "def forward(self, x):\n    return torch.matmul(x, self.weight.t()) / x.sum(1, True)\n");
  test::write_file(
      directory / "job.toml",
      "name = 'x'\nbudget_samples = 10\n" + by_script +
          "[data]\nkind = 'safetensors'\nshape = [4]\ntrain_files = ['x']\nclasses = 3\n");
  const auto job = Job::load(directory / "job.toml");
  REQUIRE_MESSAGE(job, (job ? "" : job.error().text));
  const auto half = [](std::span<float> out) { std::ranges::fill(out, 0.5f); };
  const Weights weights{"made here", {{"weight", {{3, 4}, half}}}, {}};
  const auto error = export_torchscript({weights, *job, file, directory / "out.pt"});
  CHECK_MESSAGE(!error, (error ? error->text : ""));
}
