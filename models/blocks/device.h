// models/blocks/device.h - a device that has memory of its own and runs the kernels of this folder.
#pragma once

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "models/blocks/items.h"
#include "models/blocks/kernels_list.inc"

namespace gossipd::blocks {

#define NAME_OF(name, body) name,
enum class Kernel : std::uint8_t { BLOCK_KERNELS(NAME_OF) };
#undef NAME_OF
#define TEXT_OF(name, body) #name,
inline constexpr std::array kernel_names = {BLOCK_KERNELS(TEXT_OF)};
#undef TEXT_OF

// What the driver or the compiler of a device says, and what it was asked.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct DeviceMemoryError : DeviceError {
  using DeviceError::DeviceError;
};

// What is asked of it happens in order, perhaps later; download() and finish() wait. Addresses are
// the device's. Every call throws DeviceError; one owner, any thread.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  // Throws DeviceMemoryError.
  [[nodiscard]] virtual u64 allocate(std::size_t bytes) = 0;
  virtual void release(u64 address) noexcept = 0;
  virtual void fill(u64 address, u8 value, std::size_t bytes) = 0;
  virtual void upload(u64 to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, u64 from, std::size_t bytes) = 0;
  // Memory of the host that the device copies from and to at full speed.
  [[nodiscard]] virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;
  virtual void launch(Kernel, const Arguments&) = 0;
  virtual void finish() = 0;
};

// Grows as it is asked to, and then has nothing of before.
class DeviceMemory {
 public:
  explicit DeviceMemory(Device& device) : device_(device) {}
  ~DeviceMemory() { clear(); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  u64 of(std::size_t bytes) {
    if (bytes > bytes_) {
      clear();
      address_ = device_.allocate(bytes);
      bytes_ = bytes;
    }
    return address_;
  }
  [[nodiscard]] u64 address() const { return address_; }

 private:
  void clear() noexcept {
    if (bytes_ > 0) device_.release(address_);
    address_ = 0;
    bytes_ = 0;
  }

  Device& device_;
  u64 address_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace gossipd::blocks
