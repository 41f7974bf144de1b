// Memory of whole models: zeros, and asked for in huge pages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "core/base/large_memory.h"

using namespace gossipd;

namespace {

// Whether the kernel has been asked for huge pages where `memory` lies: "hg" of its mapping.
bool wants_huge_pages(const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') inside = begin <= at && at < end;
    if (inside && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("large memory is zeros, and in huge pages where the kernel has them") {
  constexpr std::size_t many = std::size_t{4} << 20, few = 1000;
  const std::vector<float> large = large_zeros(many), small = large_zeros(few);
  CHECK(large.size() == many);
  CHECK(small.size() == few);
  CHECK(std::ranges::count(large, 0.0f) == static_cast<std::ptrdiff_t>(many));
  CHECK(std::ranges::count(small, 0.0f) == static_cast<std::ptrdiff_t>(few));
  if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
    CHECK(wants_huge_pages(large.data() + many / 2));
}
