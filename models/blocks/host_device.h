// models/blocks/host_device.h - the kernels of this folder, compiled as C++: a device whose memory
// is the host's.
//
// Shows on any machine that they compute what core/codec's do. It is slow: what is one
// instruction of a GPU is a loop here.
#pragma once

#include "models/blocks/device.h"

namespace gossipd::blocks {

class HostDevice : public Device {
 public:
  [[nodiscard]] std::string name() const override { return "host"; }
  [[nodiscard]] u64 allocate(std::size_t bytes) override;
  void release(u64 address) noexcept override;
  void fill(u64 address, u8 value, std::size_t bytes) override;
  void upload(u64 to, const void* from, std::size_t bytes) override;
  void download(void* to, u64 from, std::size_t bytes) override;
  [[nodiscard]] void* allocate_host(std::size_t bytes) override;
  void release_host(void* memory) noexcept override;
  void launch(Kernel, const Arguments&) override;
  void finish() override {}
};

}  // namespace gossipd::blocks
