// models/blocks/cuda_device.h - an NVIDIA GPU, through its driver and NVRTC.
//
// Both are found when the program runs: no build needs CUDA. NVRTC comes with LibTorch for CUDA.
#pragma once

#include <memory>

#include "models/blocks/device.h"

namespace gossipd::blocks {

class CudaDevice : public Device {
 public:
  // The GPU of this number, in the primary context, which LibTorch's tensors are in too. Compiles
  // the kernels, which takes some seconds. Throws DeviceError, which names what is missing.
  explicit CudaDevice(int number);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] u64 allocate(std::size_t bytes) override;
  void release(u64 address) noexcept override;
  void fill(u64 address, u8 value, std::size_t bytes) override;
  void upload(u64 to, const void* from, std::size_t bytes) override;
  void download(void* to, u64 from, std::size_t bytes) override;
  [[nodiscard]] void* allocate_host(std::size_t bytes) override;
  void release_host(void* memory) noexcept override;
  void launch(Kernel, const Arguments&) override;
  void finish() override;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace gossipd::blocks
