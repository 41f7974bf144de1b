// core/base/large_memory.h - memory of whole models, in huge pages where the system has them.
//
// Passes over hundreds of megabytes spend much of their time looking up pages of 4 KiB, and the
// first touch of each costs a fault. Where Linux gives huge pages on request (madvise, the usual
// setting), asking for them is all it takes: nothing else about the memory changes, and a system
// that has none to give goes on with small ones. Any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace gossipd {

// Touched here; less than a few MiB is memory as any other.
[[nodiscard]] std::vector<float> large_zeros(std::size_t floats);

}  // namespace gossipd
