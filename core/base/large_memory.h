// core/base/large_memory.h - memory of whole models: in huge pages where the system has them, or in
// files that it may write out.
//
// Passes over hundreds of megabytes spend much of their time looking up pages of 4 KiB, and the
// first touch of each costs a fault. Where Linux gives huge pages on request (madvise, the usual
// setting), asking for them is all it takes: nothing else about the memory changes, and a system
// that has none to give goes on with small ones.
//
// A model of a billion parameters asks for more than many machines have: 8 GB for the two buffers
// of a node's rounds and 4 for each link. An exchange goes through them block by block, so a fast
// disk can hold them. Where a driver has asked for it their pages are those of files without a
// name, which the kernel reads ahead and writes out as it needs room; they end with the process.
// Swap does the same by single pages in no order. A file's room is reserved when it is made: where
// the disk is full the memory is main memory as before. What is freed goes back to malloc with its
// file: of a GiB or more both end, less is used again by whoever asks.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace gossipd {

// Puts memory from new or malloc that nobody has used yet into a file; what it holds becomes
// indefinite. False: it stays as it is. Any thread.
using PutInFile = bool (*)(void* memory, std::size_t bytes);
// Before the first model is made; null, as at first: no files (models/devices/model_files.h).
void put_large_memory_by(PutInFile put);
// What that does to memory of a few MiB or more; false for less. Any thread.
bool put_in_file(void* memory, std::size_t bytes);

// In files or huge pages. Touched here.
[[nodiscard]] std::vector<float> large_zeros(std::size_t floats);
// In files or small pages (the first touch of a huge page takes milliseconds). Not touched here.
template <typename T>
[[nodiscard]] std::unique_ptr<T[]> large_array(std::size_t count) {
  auto array = std::make_unique_for_overwrite<T[]>(count);
  put_in_file(array.get(), sizeof(T) * count);
  return array;
}

}  // namespace gossipd
