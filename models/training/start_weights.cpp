#include "models/training/start_weights.h"

#include <vector>

#include "models/devices/device_replica.h"
#include "models/files/weights.h"
#include "models/networks/torchscript.h"

namespace gossipd {

namespace {

std::optional<Error> take_file(const std::string& path, const Schema& schema,
                               std::span<float> model) {
  const auto weights = is_zip_file(path) ? read_torchscript_weights(path) : read_weights(path);
  if (!weights)
    return Error{"bad-weights",
                 weights.error().text + "; start_from names a safetensors or TorchScript file"};
  return take_weights(*weights, schema, model);
}

}  // namespace

std::optional<Error> start_with(const std::string& path, Engine& engine) {
  std::vector<float> model(engine.schema().floats());
  engine.copy_model(model);
  if (auto error = take_file(path, engine.schema(), model)) return error;
  engine.replace_model(model);
  return std::nullopt;
}

std::optional<Error> check_start_from(const Job& job) {
  if (job.start_from.empty() || job.model.kind == ModelSpec::Kind::external) return std::nullopt;
  try {
    const auto network = build_network(job, job.model.file, torch::kCPU);
    FlatModel flat(network->tensors(), FlatModel::Gradient::no);
    std::vector<float> model(flat.schema().floats());
    flat.copy_to(model);
    return take_file(job.start_from, flat.schema(), model);
  } catch (const std::exception& error) {
    return Error{"bad-model", std::string("the model cannot be made: ") + error.what()};
  }
}

}  // namespace gossipd
