#define GOSSIPD_KERNELS_TABLE kernels_baseline
#define GOSSIPD_KERNELS_NAME "baseline"
#include "core/codec/kernels_version.inc"
