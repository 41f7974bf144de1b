#include "models/torchscript.h"

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "models/flat_model.h"

namespace gossipd {

namespace {

using torch::Tensor;

class ScriptNetwork : public Network {
 public:
  explicit ScriptNetwork(torch::jit::Module module) : module_(std::move(module)) {}

  Tensor forward(Tensor inputs) override { return tensor_from("forward(inputs)", [&] { return module_.forward({std::move(inputs)}); }); }
  Tensor own_loss(const Tensor& outputs, const Tensor& targets) override {
    return tensor_from("loss(outputs, targets)", [&] { return module_.get_method("loss")({outputs, targets}); });
  }

  ModelTensors tensors() override {
    ModelTensors out;
    for (const auto& item : module_.named_parameters()) out.parameters.push_back({item.name, item.value});
    for (const auto& item : module_.named_buffers()) out.buffers.push_back({item.name, item.value});
    return out;
  }

  void train(bool on) override { module_.train(on); }
  using Network::to;
  void to(torch::Device device, bool non_blocking) override { module_.to(device, non_blocking); }

 private:
  template <typename Call>
  static Tensor tensor_from(const char* method, Call call) {
    const torch::jit::GraphOptimizerEnabledGuard plain(false);
    const torch::jit::IValue value = call();
    if (!value.isTensor())
      throw std::invalid_argument(std::string("its ") + method + " returns " + value.tagKind() + "; it must return one tensor");
    return value.toTensor();
  }

  torch::jit::Module module_;
};

}  // namespace

std::string sentence_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  // The interpreter tells where it was, line by line, and what was wrong last.
  const bool traced = text.find("TorchScript interpreter") != std::string::npos;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t line = traced ? text.rfind('\n') + 1 : 0;
  const std::size_t end = text.find('\n', line);
  return text.substr(line, end == std::string::npos ? end : end - line);
}

bool is_zip_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == std::string_view("PK\3\4", 4);
}

Result<Weights> read_torchscript_weights(const std::string& path) {
  try {
    ScriptNetwork network(torch::jit::load(path, torch::kCPU));
    // Its rules are those of the model that is to take them: tied tensors are one, masks none.
    FlatModel flat(network.tensors(), FlatModel::Gradient::no);
    const auto values = std::make_shared<std::vector<float>>(flat.schema().floats());
    flat.copy_to(*values);
    Weights weights{path, {}, {}};
    for (const Segment& segment : flat.schema().segments())
      weights.tensors.emplace(segment.name, Weights::Tensor{segment.shape, [values, at = segment.offset](std::span<float> out) {
                                                              std::copy_n(values->begin() + static_cast<std::ptrdiff_t>(at), out.size(), out.begin());
                                                            }});
    return weights;
  } catch (const std::exception& error) {
    return Error{"bad-weights", path + ": cannot be read as a TorchScript file (" + sentence_of(error) + ")"};
  }
}

std::shared_ptr<Network> load_torchscript(const std::string& path, LossSpec::Kind loss) {
  try {
    torch::jit::Module module = torch::jit::load(path, torch::kCPU);
    if (loss == LossSpec::Kind::model && !module.find_method("loss"))
      throw std::invalid_argument("it has no method loss(outputs, targets), which kind = \"model\" under [loss] asks for");
    return std::make_shared<ScriptNetwork>(std::move(module));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(path + ": " + error.what());
  } catch (const std::exception& error) {
    throw std::invalid_argument(path + ": is no TorchScript file that this LibTorch reads (" + sentence_of(error) +
                                "); write one with tools/export/export_model.py");
  }
}

}  // namespace gossipd
