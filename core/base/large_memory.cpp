#include "core/base/large_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

namespace gossipd {
namespace {

constexpr std::size_t large_bytes = std::size_t{4} << 20;
constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;

std::atomic<PutInFile> put_by = nullptr;

void prefer_huge_pages(const void* memory, std::size_t bytes) {
  // Only what huge pages can hold: what lies beside it is somebody else's.
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (at + huge_page - 1) / huge_page * huge_page;
  const std::uintptr_t end = (at + bytes) / huge_page * huge_page;
  // A kernel without huge pages refuses.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

void put_large_memory_by(PutInFile put) { put_by = put; }

bool put_in_file(void* memory, std::size_t bytes) {
  const PutInFile put = put_by;
  return put != nullptr && bytes >= large_bytes && put(memory, bytes);
}

std::vector<float> large_zeros(std::size_t floats) {
  std::vector<float> values;
  values.reserve(floats);
  const std::size_t bytes = sizeof(float) * floats;
  if (!put_in_file(values.data(), bytes) && bytes >= large_bytes) {
    prefer_huge_pages(values.data(), bytes);
  }
  values.resize(floats);
  return values;
}

}  // namespace gossipd
