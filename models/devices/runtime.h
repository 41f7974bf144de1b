// models/devices/runtime.h - process-wide settings that make LibTorch train well inside a daemon.
#pragma once

namespace gossipd {

// Once, early in main(), before other threads exist: keep_freed_memory(), and LibTorch's and the
// BLAS's thread pools get `threads` threads instead of one per core.
void prepare_training_process(int threads);

// Large tensors and buffers stay on the heap instead of being mapped and unmapped each time (1.4
// times faster CNN steps).
void keep_freed_memory();

// Part of it, for other programs; before any library has read its environment. What CUDA's
// libraries are told by environment variables alone, where the user has not told them otherwise:
//   CUBLAS_WORKSPACE_CONFIG  with another one, deterministic = true is an error in cuBLAS (32 MiB)
//   TORCH_NCCL_…             a rank that hangs or fails is ours to report; NCCL's watchdog would
//                            end the process, and the model with it
void set_library_environment();

// After what is needed once or seldom, as reading the data and evaluating: what it freed goes back
// to the system, which keep_freed_memory() tells malloc not to do by itself.
void return_free_memory();

// On every thread that computes: LibTorch keeps its thread count per thread. `nice` ≥ 0 lowers the
// priority of the calling thread only; 0 leaves it as it is.
void prepare_training_thread(int threads, int nice);

}  // namespace gossipd
