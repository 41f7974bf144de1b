#include "models/devices/runtime.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

namespace gossipd {

namespace {

// LibTorch does not tell the BLAS how many threads to use; OpenBLAS takes every core by itself.
void set_blas_threads(int threads) {
  using SetThreads = void (*)(int);
  for (const char* name : {"openblas_set_num_threads", "bli_thread_set_num_threads"})
    if (void* symbol = dlsym(RTLD_DEFAULT, name)) reinterpret_cast<SetThreads>(symbol)(threads);
}

}  // namespace

void set_library_environment() {
  constexpr int keep = 0;  // what is set already
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", keep);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", keep);
#else
  setenv("NCCL_ASYNC_ERROR_HANDLING", "0", keep);
#endif
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", keep);
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", keep);
}

void prepare_training_process(int threads) {
  set_library_environment();
  keep_freed_memory();
  try {
    at::set_num_interop_threads(1);
  } catch (const std::exception&) {
    // Only the first call of a process counts; a second one is refused, and changes nothing.
  }
  prepare_training_thread(threads, 0);
}

void prepare_training_thread(int threads, int nice) {
  at::set_num_threads(threads);
  set_blas_threads(threads);
  if (nice > 0) {
    const auto thread = static_cast<id_t>(syscall(SYS_gettid));
    setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + nice);
  }
}

}  // namespace gossipd
