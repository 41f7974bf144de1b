// What a node does about CUDA without a card: page-locked memory by a made-up runtime, why a GPU is
// not used, words that mean exhausted memory, and waiting with an end.
#include <doctest/doctest.h>

#include <map>
#include <utility>
#include <vector>

#include "models/devices/cuda_runtime.h"
#include "models/devices/device_failure.h"
#include "models/devices/patience.h"

using namespace gossipd;

namespace {

// What the made-up runtime has been asked.
struct Registry {
  std::map<void*, std::size_t> locked;
  int refusal = 0;  // cudaError_t; 0: none
  int last_error = 0;
};
Registry registry;

CudaRuntime made_up_runtime() {
  registry = {};
  CudaRuntime runtime;
  runtime.host_register = [](void* memory, std::size_t bytes, unsigned) {
    if (registry.refusal != 0) return registry.last_error = registry.refusal;
    registry.locked[memory] = bytes;
    return 0;
  };
  runtime.host_unregister = [](void* memory) { return registry.locked.erase(memory) == 1 ? 0 : 1; };
  runtime.last_error = [] { return std::exchange(registry.last_error, 0); };
  return runtime;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CudaFacts good_machine() {
  return {.built_with_cuda = true,
          .has_driver = true,
          .has_uvm = true,
          .driver_version = 13020,
          .runtime_version = 13020,
          .devices = 0};
}

}  // namespace

TEST_CASE("Page-locked memory is as large as asked for, to the page, and given back") {
  const CudaRuntime runtime = made_up_runtime();
  constexpr std::size_t bytes = (std::size_t{1} << 22) + 5 * 4096;  // far from a power of two
  {
    const PageLocked memory(bytes - 3, runtime);
    CHECK(memory.is_locked());
    CHECK(memory.bytes() == bytes);
    CHECK(registry.locked == std::map<void*, std::size_t>{{memory.data(), bytes}});
    const PageLocked second(1, runtime);
    CHECK(registry.locked.size() == 2);
    CHECK(second.bytes() == 4096);
    static_cast<char*>(memory.data())[bytes - 4] = 1;
  }
  CHECK(registry.locked.empty());
  const PageLocked none(0, runtime);
  CHECK(none.bytes() == 4096);
}

TEST_CASE("Where CUDA refuses to lock memory it is pageable, and no error is left for others") {
  const CudaRuntime runtime = made_up_runtime();
  registry.refusal = 2;
  const PageLocked memory(8192, runtime);
  CHECK_FALSE(memory.is_locked());
  CHECK(registry.last_error == 0);
  static_cast<char*>(memory.data())[8191] = 1;
  const PageLocked without_cuda(8192, CudaRuntime{});
  CHECK_FALSE(without_cuda.is_locked());
}

TEST_CASE(
    "A GPU that is not used is explained, with what to do, and loudly only where there is one") {
  CudaFacts facts = good_machine();
  facts.has_driver = false;
  CHECK(contains(why_no_cuda(facts).text, "no NVIDIA driver"));
  CHECK_FALSE(why_no_cuda(facts).urgent);

  facts = good_machine();
  facts.built_with_cuda = false;
  CHECK(contains(why_no_cuda(facts).text, "deploy/torch-wheel.sh"));
  CHECK(why_no_cuda(facts).urgent);

  facts = good_machine();
  facts.driver_version = 12040;
  CHECK(contains(why_no_cuda(facts).text, "runs CUDA 12.4 and this LibTorch is built for 13.2"));
  CHECK(contains(why_no_cuda(facts).text, "580.65 or later"));
  CHECK(why_no_cuda(facts).urgent);
  facts.runtime_version = 12080;  // minor versions of one major run on one driver
  CHECK_FALSE(contains(why_no_cuda(facts).text, "install a newer driver"));

  facts = good_machine();
  facts.has_uvm = false;
  CHECK(contains(why_no_cuda(facts).text, "/dev/nvidia-uvm"));
  CHECK(contains(why_no_cuda(facts).text, "nvidia-modprobe -u"));

  facts = good_machine();
  facts.hides_devices = true;
  CHECK(contains(why_no_cuda(facts).text, "CUDA_VISIBLE_DEVICES"));

  CHECK(contains(why_no_cuda(good_machine()).text, "nvidia-smi"));
  for (const CudaFacts& each : {facts, good_machine()})
    CHECK(contains(why_no_cuda(each).text, "trainer.device=cpu"));
}

TEST_CASE("Exhausted memory is known by its words, whichever library says them") {
  for (const char* text :
       {"CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
        "The following operation failed in the TorchScript interpreter.\nTraceback\nRuntimeError: "
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "[enforce fail at alloc_cpu.cpp:66] . "
        "DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 8 bytes",
        "std::bad_alloc"})
    CHECK_MESSAGE(says_out_of_memory(text), text);
  for (const char* text : {"CUDA error: an illegal memory access was encountered",
                           "mat1 and mat2 shapes cannot be multiplied"})
    CHECK_FALSE_MESSAGE(says_out_of_memory(text), text);
}

TEST_CASE("Words of exhausted main memory are none of a device's") {
  for (const char* text :
       {"std::bad_alloc", "RuntimeError: std::bad_alloc", "std::bad_array_new_length",
        "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory"})
    CHECK_MESSAGE(says_main_memory(text), text);
  for (const char* text :
       {"CUDA out of memory. Tried to allocate 20.00 GiB", "CUDA error: out of memory",
        "std::bad_alloc: cudaErrorMemoryAllocation: out of memory"})
    CHECK_FALSE_MESSAGE(says_main_memory(text), text);
}

TEST_CASE(
    "The figures of a device's memory are told in GiB, and nothing where CUDA does not tell") {
  CudaRuntime runtime;
  CHECK(memory_figures(runtime).empty());
  runtime.memory_info = [](std::size_t* free, std::size_t* total) {
    *free = std::size_t{1288490189};
    *total = std::size_t{80} << 30;
    return 0;
  };
  CHECK(memory_figures(runtime) == "1.2 of 80.0 GiB are free");
  runtime.memory_info = [](std::size_t*, std::size_t*) { return 100; };
  CHECK(memory_figures(runtime).empty());
}

TEST_CASE("A device that never answers is given up by its name; one that does is waited for") {
  int asked = 0;
  await_device([&] { return ++asked == 1000; }, "cuda:0");
  CHECK(asked == 1000);
  try {
    await_device([] { return false; }, "cuda:1", std::chrono::milliseconds(5));
    FAIL("waited for ever");
  } catch (const DeviceSilent& error) {
    CHECK(contains(error.what(), "cuda:1 has not finished its work"));
  }
}
