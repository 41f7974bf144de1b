// models/devices/runtime.h - process-wide settings that make LibTorch train well inside a daemon.
#pragma once

namespace gossipd {

// Once, early in main(), before other threads exist. Large tensors stay on the heap instead of
// being mapped and unmapped in every step (1.4 times faster CNN steps), and LibTorch's and the
// BLAS's thread pools get `threads` threads instead of one per core.
void prepare_training_process(int threads);

// On every thread that computes: LibTorch keeps its thread count per thread. `nice` ≥ 0 lowers the
// priority of the calling thread only; 0 leaves it as it is.
void prepare_training_thread(int threads, int nice);

}  // namespace gossipd
