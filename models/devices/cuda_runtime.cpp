#include "models/devices/cuda_runtime.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

namespace gossipd {

namespace {

constexpr unsigned portable = 1;  // cudaHostRegisterPortable: locked for every device
constexpr const char* driver_file = "/proc/driver/nvidia/version";
constexpr const char* uvm_device = "/dev/nvidia-uvm";

template <typename Call>
void find(const char* name, Call& call) {
  call = reinterpret_cast<Call>(dlsym(RTLD_DEFAULT, name));
}

// 12040 is CUDA 12.4.
std::string number_of(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The oldest driver that runs the minor versions of a major one, from NVIDIA's table of
// compatibility.
std::string driver_wanted(int runtime_version) {
  switch (runtime_version / 1000) {
    case 11: return "450.80";
    case 12: return "525.60";
    case 13: return "580.65";
    default: return "";
  }
}

std::string gibibytes(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(bytes) / (1ull << 30));
  return text;
}

}  // namespace

const CudaRuntime& CudaRuntime::of_process() {
  static const CudaRuntime runtime = [] {
    CudaRuntime found;
    find("cudaHostRegister", found.host_register);
    find("cudaHostUnregister", found.host_unregister);
    find("cudaGetLastError", found.last_error);
    find("cudaMemGetInfo", found.memory_info);
    find("cudaDriverGetVersion", found.driver_version);
    find("cudaRuntimeGetVersion", found.runtime_version);
    return found;
  }();
  return runtime;
}

// Pages of its own: two ranges that share one cannot both be registered.
PageLocked::PageLocked(std::size_t bytes, const CudaRuntime& runtime) : runtime_(runtime) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  bytes_ = bytes == 0 ? page : (bytes + page - 1) / page * page;
  data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) throw std::bad_alloc();
  if (runtime_.host_register == nullptr || runtime_.host_unregister == nullptr) return;
  locked_ = runtime_.host_register(data_, bytes_, portable) == 0;
  // Whoever looks at CUDA's last error next would take this one for his own.
  if (!locked_ && runtime_.last_error != nullptr) runtime_.last_error();
}

PageLocked::~PageLocked() {
  if (locked_ && runtime_.host_unregister(data_) != 0 && runtime_.last_error != nullptr)
    runtime_.last_error();
  munmap(data_, bytes_);
}

CudaFacts cuda_facts(bool built_with_cuda, int devices) {
  CudaFacts facts{.built_with_cuda = built_with_cuda,
                  .has_driver = access(driver_file, F_OK) == 0,
                  .devices = devices};
  if (const int uvm = open(uvm_device, O_RDWR | O_CLOEXEC); uvm >= 0) {
    facts.has_uvm = true;
    close(uvm);
  }
  const CudaRuntime& runtime = CudaRuntime::of_process();
  if (runtime.driver_version != nullptr && runtime.driver_version(&facts.driver_version) != 0)
    facts.driver_version = 0;
  if (runtime.runtime_version != nullptr && runtime.runtime_version(&facts.runtime_version) != 0)
    facts.runtime_version = 0;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  facts.hides_devices = visible != nullptr && (*visible == '\0' || *visible == '-');
  return facts;
}

NoCuda why_no_cuda(const CudaFacts& facts) {
  const std::string also = "; trainer.device=cpu says that the CPU is meant";
  if (!facts.has_driver)
    return {"this machine has no NVIDIA driver (" + std::string(driver_file) +
                " is missing): install one if it has a GPU" +
                (facts.built_with_cuda ? "" : ", and build gossipd with a LibTorch for CUDA") +
                also,
            false};
  if (!facts.built_with_cuda)
    return {
        "this machine has an NVIDIA driver, but this gossipd is built with a LibTorch for the "
        "CPU alone: build it with one for CUDA (deploy/torch-wheel.sh)" +
            also,
        true};
  if (facts.hides_devices)
    return {"CUDA_VISIBLE_DEVICES names no device: unset it, or write the GPU's number" + also,
            true};
  if (facts.driver_version > 0 && facts.driver_version / 1000 < facts.runtime_version / 1000) {
    const std::string driver = driver_wanted(facts.runtime_version);
    return {"the NVIDIA driver runs CUDA " + number_of(facts.driver_version) +
                " and this LibTorch is built for " + number_of(facts.runtime_version) +
                ": install a newer driver" + (driver.empty() ? "" : " (" + driver + " or later)") +
                ", or build gossipd with an older LibTorch" + also,
            true};
  }
  if (!facts.has_uvm)
    return {std::string(uvm_device) +
                " cannot be opened: run nvidia-modprobe -u as root, and look whether the service "
                "or container may use the device" +
                also,
            true};
  return {"LibTorch sees no CUDA device on this machine: does nvidia-smi list one?" + also, true};
}

bool says_out_of_memory(std::string_view text) {
  for (const std::string_view words :
       {"out of memory", "not enough memory", "can't allocate memory", "std::bad_alloc",
        "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation"})
    if (text.find(words) != std::string_view::npos) return true;
  return false;
}

std::string memory_figures(const CudaRuntime& runtime) {
  std::size_t free = 0, total = 0;
  if (runtime.memory_info == nullptr) return "";
  if (runtime.memory_info(&free, &total) == 0)
    return gibibytes(free) + " of " + gibibytes(total) + " GiB are free";
  if (runtime.last_error != nullptr) runtime.last_error();
  return "";
}

}  // namespace gossipd
