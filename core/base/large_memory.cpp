#include "core/base/large_memory.h"

#include <sys/mman.h>

#include <cstdint>

namespace gossipd {
namespace {

constexpr std::size_t large_bytes = std::size_t{4} << 20;
constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;

void prefer_huge_pages(const void* memory, std::size_t bytes) {
  // Only what huge pages can hold: what lies beside it is somebody else's.
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (at + huge_page - 1) / huge_page * huge_page;
  const std::uintptr_t end = (at + bytes) / huge_page * huge_page;
  // A kernel without huge pages refuses.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

std::vector<float> large_zeros(std::size_t floats) {
  std::vector<float> values;
  values.reserve(floats);
  if (const std::size_t bytes = sizeof(float) * floats; bytes >= large_bytes)
    prefer_huge_pages(values.data(), bytes);
  values.resize(floats);
  return values;
}

}  // namespace gossipd
