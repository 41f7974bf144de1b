#define GOSSIPD_KERNELS_TABLE kernels_avx512
#define GOSSIPD_KERNELS_NAME "avx512"
#include "core/codec/kernels_version.inc"
