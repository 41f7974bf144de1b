#include "models/devices/blas.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace gossipd {
namespace {

constexpr const char* variable = "OPENBLAS_CORETYPE";
// Those of 64-bit x86 without AVX2. Others are right, or of a processor that has no better ones.
constexpr std::array old_cores = {"Generic",  "Katmai",     "Coppermine", "Northwood",
                                  "Prescott", "Banias",     "Atom",       "Core2",
                                  "Penryn",   "Dunnington", "Nehalem",    "Sandybridge",
                                  "Athlon",   "Opteron",    "Barcelona",  "Bobcat"};

}  // namespace

VectorUnits vector_units() {
  VectorUnits units;
#ifdef __x86_64__
  units.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  units.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
  return units;
}

std::optional<std::string> better_blas(std::string_view core, const VectorUnits& units) {
  if (!units.avx2 || std::ranges::find(old_cores, core) == old_cores.end()) return std::nullopt;
  return units.avx512 ? "SkylakeX" : "Haswell";
}

void use_best_blas(const char* program, std::vector<std::string> arguments) {
  using CoreName = char* (*)();
  const auto core_name = reinterpret_cast<CoreName>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (core_name == nullptr || std::getenv(variable) != nullptr) return;
  const auto better = better_blas(core_name(), vector_units());
  if (!better || setenv(variable, better->c_str(), 1) != 0) return;
  std::string name = program;
  std::vector<char*> words{name.data()};
  for (std::string& word : arguments) words.push_back(word.data());
  words.push_back(nullptr);
  (void)::execv("/proc/self/exe", words.data());
  (void)unsetenv(variable);
}

}  // namespace gossipd
