#include "core/codec/kernels.h"

#include "core/codec/kernels_versions.h"

namespace gossipd {

namespace {

struct Versions {
  const Kernels* list[3] = {&kernels_baseline};
  std::size_t count = 1;

  Versions() {
#ifdef GOSSIPD_KERNELS_X86
    if (__builtin_cpu_supports("avx2")) list[count++] = &kernels_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      list[count++] = &kernels_avx512;
    }
#endif
  }
};

const Versions& versions() {
  static const Versions found;
  return found;
}

}  // namespace

const Kernels& kernels() { return *versions().list[versions().count - 1]; }

std::span<const Kernels* const> kernel_versions() { return {versions().list, versions().count}; }

}  // namespace gossipd
