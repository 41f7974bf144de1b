// core/codec/kernels_versions.h - the tables that kernels.cpp picks from, one per instruction
// set.
//
// Each is defined by a file of its own that includes kernels_version.inc; use kernels() instead.
#pragma once

#include "core/codec/kernels.h"

namespace gossipd {

extern const Kernels kernels_baseline;
#ifdef GOSSIPD_KERNELS_X86
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

}  // namespace gossipd
