#include "models/networks/torchscript.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <fstream>
#include <new>
#include <stdexcept>

namespace gossipd {

namespace {

using torch::Tensor;

class ScriptNetwork : public Network {
 public:
  explicit ScriptNetwork(torch::jit::Module module) : module_(std::move(module)) {}

  Tensor forward(Tensor inputs) override {
    return tensor_from("forward(inputs)", [&] { return module_.forward({std::move(inputs)}); });
  }
  Tensor own_loss(const Tensor& outputs, const Tensor& targets) override {
    return tensor_from("loss(outputs, targets)", [&] {
      return module_.get_method("loss")({outputs, targets});
    });
  }

  ModelTensors tensors() override { return tensors_of(module_); }

  void train(bool on) override { module_.train(on); }
  using Network::to;
  void to(torch::Device device, bool non_blocking) override { module_.to(device, non_blocking); }

 private:
  template <typename Call>
  static Tensor tensor_from(const char* method, Call call) {
    const torch::jit::GraphOptimizerEnabledGuard plain(false);
    const torch::jit::IValue value = call();
    if (!value.isTensor())
      throw std::invalid_argument(std::string("its ") + method + " returns " + value.tagKind() +
                                  "; it must return one tensor");
    return value.toTensor();
  }

  torch::jit::Module module_;
};

}  // namespace

ModelTensors tensors_of(const torch::jit::Module& module) {
  ModelTensors out;
  for (const auto& item : module.named_parameters())
    out.parameters.push_back({item.name, item.value});
  for (const auto& item : module.named_buffers()) out.buffers.push_back({item.name, item.value});
  return out;
}

std::string sentence_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  // The interpreter tells where it was, line by line, and what was wrong last; which may be several
  // lines, as CUDA's errors are, of which the first says it.
  const bool traced = text.find("TorchScript interpreter") != std::string::npos;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text.erase(0, text.find_first_not_of('\n'));  // what the compiler complains of begins with one
  const std::size_t kind = text.rfind("\nRuntimeError: ");
  const std::size_t line = !traced                     ? 0
                           : kind != std::string::npos ? kind + 1
                                                       : text.rfind('\n') + 1;
  const std::size_t end = text.find('\n', line);
  return text.substr(line, end == std::string::npos ? end : end - line);
}

bool is_zip_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, sizeof magic) &&
         std::string_view(magic, sizeof magic) == std::string_view("PK\3\4", 4);
}

std::string why_no_torchscript(const std::string& path, const std::exception& error) {
  const std::string way_out = "; write one with tools/export/export_model.py";
  if (!is_zip_file(path)) return "is no TorchScript file (it does not begin as one)" + way_out;
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    if (reader.hasRecord("data.pkl") && !reader.hasRecord("constants.pkl"))
      return "is no TorchScript file but a pickle, which torch.save() writes and Python alone can "
             "open" +
             way_out;
  } catch (const std::exception&) {
    return "is a TorchScript file cut short, or damaged" + way_out;
  }
  return "is no TorchScript file that LibTorch " TORCH_VERSION " reads (" + sentence_of(error) +
         "); export it with a PyTorch as old, or build gossipd with a newer LibTorch "
         "(deploy/torch-wheel.sh)";
}

std::shared_ptr<Network> load_torchscript(const std::string& path, LossSpec::Kind loss) {
  try {
    torch::jit::Module module = torch::jit::load(path, torch::kCPU);
    if (loss == LossSpec::Kind::model && !module.find_method("loss"))
      throw std::invalid_argument(
          "it has no method loss(outputs, targets), which kind = \"model\" under [loss] asks for");
    return std::make_shared<ScriptNetwork>(std::move(module));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(path + ": " + error.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    // LibTorch's words where the file may well be one
    if (std::string_view(error.what()).find("can't allocate memory") != std::string::npos) throw;
    throw std::invalid_argument(path + ": " + why_no_torchscript(path, error));
  }
}

}  // namespace gossipd
