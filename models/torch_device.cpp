#include "models/torch_device.h"

namespace gossipd {

Result<torch::Device> find_device(const std::string& wanted) {
  const int devices = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
  if (wanted == "cpu" || (wanted == "auto" && devices == 0)) return torch::Device(torch::kCPU);
  int index = 0;
  if (wanted.starts_with("cuda:")) {
    const std::string digits = wanted.substr(5);
    if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos) index = -1;
    else index = std::stoi(digits);
  } else if (wanted != "cuda" && wanted != "auto") {
    index = -1;
  }
  if (index < 0) return Error{"bad-config", "device '" + wanted + "' is not known; choose auto, cpu, cuda or cuda:N"};
  if (devices == 0)
    return Error{"no-device", "device '" + wanted + "': LibTorch sees no CUDA device; check nvidia-smi and that gossipd was built " +
                                  "with a LibTorch for CUDA, or set device = \"cpu\""};
  if (index >= devices)
    return Error{"no-device", "device '" + wanted + "': there are " + std::to_string(devices) + " CUDA devices, the last is cuda:" +
                                  std::to_string(devices - 1)};
  return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(index));
}

}  // namespace gossipd
