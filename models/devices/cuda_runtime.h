// models/devices/cuda_runtime.h - the few calls of CUDA's runtime that LibTorch has no interface
// for, found in the process when it runs.
//
// No build needs CUDA's headers, and without CUDA every call is null. A test brings calls of its
// own. Plain C++; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gossipd {

// As cudart declares them; 0 is success.
struct CudaRuntime {
  int (*host_register)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_unregister)(void* memory) = nullptr;
  int (*last_error)() = nullptr;                                        // and forgets it
  int (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;  // of the current device
  int (*driver_version)(int* version) = nullptr;  // the newest CUDA that the driver runs: 13020
  int (*runtime_version)(int* version) = nullptr;

  [[nodiscard]] static const CudaRuntime& of_process();
};

// Host memory that a device reads and writes by itself. Exactly as large as asked for, in whole
// pages: LibTorch's allocator of pinned memory rounds up to a power of two, which for a model is up
// to twice the memory. Pageable where CUDA refuses (RLIMIT_MEMLOCK in a container): copies are then
// slower, and right. Throws std::bad_alloc.
class PageLocked {
 public:
  explicit PageLocked(std::size_t bytes, const CudaRuntime& = CudaRuntime::of_process());
  ~PageLocked();
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_locked() const { return locked_; }

 private:
  const CudaRuntime runtime_;
  std::size_t bytes_;  // whole pages; never 0
  void* data_ = nullptr;
  bool locked_ = false;
};

// What a machine says about CUDA.
struct CudaFacts {
  bool built_with_cuda = false;  // this LibTorch
  bool has_driver = false;       // a kernel module of NVIDIA's is loaded
  bool has_uvm = false;          // /dev/nvidia-uvm can be opened
  int driver_version = 0;        // CUDA's number, such as 12040; 0: unknown
  int runtime_version = 0;       // … of the LibTorch
  bool hides_devices = false;    // CUDA_VISIBLE_DEVICES is set and names none
  int devices = 0;               // that LibTorch sees
};

// Why a node trains on the CPU though it may use a GPU, and what to do. `urgent`: there is a GPU
// that is not used, which is hardly what its owner wants.
struct NoCuda {
  std::string text;
  bool urgent = false;
};
[[nodiscard]] NoCuda why_no_cuda(const CudaFacts&);

// Of the machine, but for what LibTorch says itself.
[[nodiscard]] CudaFacts cuda_facts(bool built_with_cuda, int devices);

// Whether a library's words mean that a device, or the host, has no room. TorchScript's interpreter
// passes on the words of an exception alone.
[[nodiscard]] bool says_out_of_memory(std::string_view text);

// "1.2 of 79.1 GiB are free", of the calling thread's current CUDA device; empty where unknown.
[[nodiscard]] std::string memory_figures(const CudaRuntime& = CudaRuntime::of_process());

}  // namespace gossipd
