// Which kernels OpenBLAS is told to take.
#include <doctest/doctest.h>

#include "models/devices/blas.h"

using namespace gossipd;

TEST_CASE("blas: kernels older than the processor are replaced, others are left") {
  const VectorUnits none{}, avx2{.avx2 = true}, avx512{.avx2 = true, .avx512 = true};
  CHECK(better_blas("Prescott", avx512) == "SkylakeX");
  CHECK(better_blas("Prescott", avx2) == "Haswell");
  CHECK(better_blas("Nehalem", avx2) == "Haswell");
  CHECK_FALSE(better_blas("Prescott", none));
  for (const char* right : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids",
                            "NEOVERSEN1", "a name of the future", ""})
    CHECK_FALSE(better_blas(right, avx512));
}
