#include "models/checkpoint/export.h"

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include <stdexcept>

#include "models/files/model_file.h"
#include "models/networks/flat_model.h"
#include "models/networks/torchscript.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr std::int64_t trial_batch = 3;  // another than the one that is traced
// relative, of outputs: the same kernels may add up in another order
constexpr double difference_max = 1e-4;

// [batch, the sample's shape …]
Tensor zeros_of(const Job& job, std::int64_t batch) {
  const SampleShape sample = job.data.input();
  std::vector<std::int64_t> shape = sample.shape;
  shape.insert(shape.begin(), batch);
  return torch::zeros(
      shape, sample.element == SampleShape::Element::float32 ? torch::kFloat32 : torch::kInt64);
}

// The same tensors under the same names, as a module of TorchScript's that has no methods yet.
torch::jit::Module mirror(const torch::nn::Module& module, const std::string& name,
                          const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  torch::jit::Module out(c10::QualifiedName(name), unit);
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    out.register_parameter(item.key(), item.value(), /*is_buffer=*/false);
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    out.register_buffer(item.key(), item.value());
  for (const auto& item : module.named_children())
    out.register_module(item.key(), mirror(*item.value(), name + "_" + item.key(), unit));
  out.register_attribute("training", c10::BoolType::get(), false);
  return out;
}

torch::jit::Module trace(Network& network, const Tensor& inputs) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module module = mirror(network, "__torch__.gossipd", unit);
  const auto forward = [&network](torch::jit::Stack stack) {
    return torch::jit::Stack{network.forward(stack.at(0).toTensor())};
  };
  const auto no_name = [](const Tensor&) { return std::string(); };
  const auto [state, outputs] = torch::jit::tracer::trace(
      {inputs}, forward, no_name, /*strict=*/true, /*force_outplace=*/false, &module, {"inputs"});
  module.type()->addMethod(
      unit->create_function(c10::QualifiedName(*module.type()->name(), "forward"), state->graph));
  return module;
}

void take(const Weights& weights, const ModelTensors& tensors) {
  FlatModel flat(tensors, FlatModel::Gradient::no);
  std::vector<float> values(flat.schema().floats());
  flat.copy_to(values);
  if (const auto error = take_weights(weights, flat.schema(), values))
    throw std::invalid_argument(error->text);
  flat.copy_from(values);
}

// Tensors of their own in place of the views of one vector: each view would be written with the
// whole vector behind it.
void part(const ModelTensors& tensors) {
  for (auto* list : {&tensors.parameters, &tensors.buffers})
    for (const auto& named : *list) {
      Tensor tensor = named.tensor;
      tensor.set_data(tensor.detach().clone());
    }
}

torch::jit::Module built_in(const TorchScriptExport& what) {
  const auto network =
      make_network(what.job.model, {what.job.data.shape, outputs_of(what.job)}, what.job.seed);
  network->train(false);
  take(what.weights, network->tensors());
  part(network->tensors());
  return trace(*network, zeros_of(what.job, 2));
}

torch::jit::Module from_file(const TorchScriptExport& what) {
  const auto content = identify_file(what.model_file);
  if (!content || *content != what.job.model.content)
    throw std::invalid_argument(
        (content ? what.model_file + ": is not the model that the checkpoint was trained with"
                 : content.error().text) +
        "; bring the file " + what.job.model.file + " that the cluster was founded with");
  torch::jit::Module module = torch::jit::load(what.model_file, torch::kCPU);
  take(what.weights, tensors_of(module));
  part(tensors_of(module));
  module.eval();
  return module;
}

Tensor outputs_of(torch::jit::Module& module, const Tensor& inputs) {
  const auto value = module.forward({inputs});
  if (!value.isTensor())
    throw std::invalid_argument("its forward(inputs) returns " + value.tagKind() +
                                ", not a tensor");
  return value.toTensor();
}

void prove_equal(torch::jit::Module& module, const fs::path& written, const Job& job) {
  const torch::NoGradGuard no_gradient;
  torch::jit::Module again = torch::jit::load(written.string(), torch::kCPU);
  const Tensor inputs = zeros_of(job, trial_batch);
  const Tensor want = outputs_of(module, inputs), got = outputs_of(again, inputs);
  // Of zeros a sound model may make NaN.
  if (want.sizes() != got.sizes() ||
      !torch::allclose(want, got, difference_max, difference_max, /*equal_nan=*/true))
    throw std::invalid_argument(
        "what was written computes something else than the model; this is a mistake of gossipd or "
        "of LibTorch");
}

}  // namespace

std::optional<Error> export_torchscript(const TorchScriptExport& what) {
  fs::path part = what.to;
  part += ".part";
  std::error_code error;
  try {
    const torch::NoGradGuard no_gradient;
    torch::jit::Module module =
        what.job.model.kind == ModelSpec::Kind::torchscript ? from_file(what) : built_in(what);
    torch::jit::ExtraFilesMap words;
    for (const auto& [key, value] : what.weights.metadata) words["gossipd/" + key] = value;
    module.save(part.string(), words);
    prove_equal(module, part, what.job);
  } catch (const std::exception& failed) {
    fs::remove(part, error);
    return Error{"bad-model", what.to.string() + ": not written: " + sentence_of(failed)};
  }
  fs::rename(part, what.to, error);
  if (error)
    return Error{"io-error", what.to.string() + ": cannot be put in place: " + error.message()};
  return std::nullopt;
}

}  // namespace gossipd
