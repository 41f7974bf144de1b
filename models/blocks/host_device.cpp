#include "models/blocks/host_device.h"

#include <cstring>
#include <new>

#include "models/blocks/warp.inc"
// after warp.inc
#include "models/blocks/kernels_base.inc"
// after kernels_base.inc
#include "models/blocks/kernels_decode.inc"
#include "models/blocks/kernels_encode.inc"
#include "models/blocks/kernels_hash.inc"
#include "models/blocks/kernels_measure.inc"

namespace gossipd::blocks {
namespace {

using Body = void (*)(const Arguments&, u32 warp);
#define BODY_OF(name, body) body,
constexpr std::array<Body, kernel_names.size()> bodies = {BLOCK_KERNELS(BODY_OF)};
#undef BODY_OF

}  // namespace

u64 HostDevice::allocate(std::size_t bytes) {
  void* const memory = ::operator new (bytes, std::align_val_t{256}, std::nothrow);
  if (memory == nullptr)
    throw DeviceMemoryError("the host has no " + std::to_string(bytes) + " bytes");
  return reinterpret_cast<u64>(memory);
}

void HostDevice::release(u64 address) noexcept {
  ::operator delete (reinterpret_cast<void*>(address), std::align_val_t{256});
}

void HostDevice::fill(u64 address, u8 value, std::size_t bytes) {
  std::memset(reinterpret_cast<void*>(address), value, bytes);
}

void HostDevice::upload(u64 to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
}

void HostDevice::download(void* to, u64 from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
}

void* HostDevice::allocate_host(std::size_t bytes) {
  return reinterpret_cast<void*>(allocate(bytes));
}

void HostDevice::release_host(void* memory) noexcept { release(reinterpret_cast<u64>(memory)); }

void HostDevice::launch(Kernel kernel, const Arguments& arguments) {
  for (u32 warp = 0; warp < arguments.warps; ++warp)
    bodies[static_cast<std::size_t>(kernel)](arguments, warp);
}

}  // namespace gossipd::blocks
