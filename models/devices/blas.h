// models/devices/blas.h - OpenBLAS with the kernels that this processor runs.
//
// OpenBLAS knows processors by their model numbers. On one that is newer than the library it falls
// back to kernels of 2004: Debian 12's multiplies matrices at a fifth of the speed on a Xeon of
// 2023, and a `gpt` trains at half. Its environment variable chooses others, but only before the
// library is loaded.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gossipd {

// What a processor can do, as far as these kernels need it.
struct VectorUnits {
  bool avx2 = false;    // with FMA
  bool avx512 = false;  // F, DQ, BW and VL
};
[[nodiscard]] VectorUnits vector_units();

// The name of better kernels than those of `core`, as OpenBLAS calls what it has chosen; none:
// these are right.
[[nodiscard]] std::optional<std::string> better_blas(std::string_view core, const VectorUnits&);

// Early in main(), with its name and its arguments: where OpenBLAS has fallen back, starts this
// program again with OPENBLAS_CORETYPE set. Once, and not where that is set already. Returns where
// there is nothing to be done, or where it cannot be.
void use_best_blas(const char* program, std::vector<std::string> arguments);

}  // namespace gossipd
