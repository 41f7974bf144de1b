#define GOSSIPD_KERNELS_TABLE kernels_avx2
#define GOSSIPD_KERNELS_NAME "avx2"
#include "core/codec/kernels_version.inc"
