#include "models/devices/torch_device.h"

#include "models/devices/device_group.h"
#include "models/networks/torchscript.h"

namespace gossipd {

namespace {

Result<torch::Device> find_device(const std::string& wanted, int cuda_devices) {
  const int index = cuda_index(wanted);
  if (index < 0) return torch::Device(torch::kCPU);
  if (index >= cuda_devices)
    return Error{"no-device",
                 "device '" + wanted + "': there are " + std::to_string(cuda_devices) +
                     " CUDA devices, the last is cuda:" + std::to_string(cuda_devices - 1)};
  return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(index));
}

int count_cuda_devices() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

std::vector<std::string> all_cuda(int cuda_devices) {
  std::vector<std::string> out;
  for (int i = 0; i < cuda_devices; ++i) out.push_back("cuda:" + std::to_string(i));
  return out;
}

std::string figures_of(torch::Device device) {
  if (!device.is_cuda()) return "";
  try {
    const c10::DeviceGuard guard(device);
    return memory_figures();
  } catch (const std::exception&) {  // no room even to use the device
    return "";
  }
}

}  // namespace

Result<std::vector<torch::Device>> find_devices(const std::string& wanted) {
  auto names = split_devices(wanted);
  if (!names) return Error{names.error().code, "device: " + names.error().text};
  const int cuda_devices = count_cuda_devices();
  if (wanted == "auto") names = std::vector<std::string>{cuda_devices > 0 ? "cuda:0" : "cpu"};
  if (names->front() != "cpu" && cuda_devices == 0)
    return Error{"no-device", "device '" + wanted + "': " +
                                  why_no_cuda(cuda_facts(at::Context::hasCUDART(), 0)).text};
  if (wanted == "cuda:all") names = all_cuda(cuda_devices);
  std::vector<torch::Device> devices;
  for (const std::string& name : *names) {
    const auto device = find_device(name, cuda_devices);
    if (!device) return device.error();
    devices.push_back(*device);
  }
  if (devices.size() > 1)
    if (const auto reason = why_no_group(devices.front().type()))
      return Error{"no-device", "device '" + wanted + "': " + *reason};
  return devices;
}

std::string joined(const std::vector<torch::Device>& devices) {
  std::string out;
  for (const torch::Device& device : devices) out += (out.empty() ? "" : ",") + device.str();
  return out;
}

NoCuda why_on_cpu(const std::string& wanted) {
  const int cuda_devices = count_cuda_devices();
  if (wanted != "auto" || cuda_devices > 0) return {};
  return why_no_cuda(cuda_facts(at::Context::hasCUDART(), cuda_devices));
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr || says_out_of_memory(error.what());
}

OutOfMemory in_words(const std::exception& out_of_memory, torch::Device device) {
  const std::string sentence = sentence_of(out_of_memory);
  if (!device.is_cpu() && says_main_memory(sentence))
    return OutOfMemory("main memory: " + sentence, OutOfMemory::Memory::main);
  const std::string figures = figures_of(device);
  return OutOfMemory(device.str() + ": " + sentence +
                     (figures.empty() ? "" : " (" + figures + ")"));
}

std::optional<Error> lack_of_memory(const std::exception& error,
                                    const std::vector<torch::Device>& devices) {
  const auto* known = dynamic_cast<const OutOfMemory*>(&error);
  if (known == nullptr && !is_out_of_memory(error)) return std::nullopt;
  const std::string what = known != nullptr ? known->what() : in_words(error, devices[0]).what();
  return Error{"device-failed", "the model finds no room on " + joined(devices) + ": " + what +
                                    "; free memory there, raise a limit (ulimit -v, a container's) "
                                    "or choose another trainer.device; then start gossipd again"};
}

}  // namespace gossipd
