// What malloc keeps and gives back: in programs with and without LibTorch.
#include <malloc.h>

#include "models/devices/runtime.h"

namespace gossipd {

namespace {

// below it malloc keeps memory instead of mapping it anew
constexpr int heap_block_bytes_max = 1 << 30;

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, heap_block_bytes_max);
  mallopt(M_TRIM_THRESHOLD, heap_block_bytes_max);
}

void return_free_memory() { malloc_trim(0); }

}  // namespace gossipd
