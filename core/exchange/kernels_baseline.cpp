#define GOSSIPD_KERNELS_TABLE kernels_baseline
#define GOSSIPD_KERNELS_NAME "baseline"
#include "core/exchange/kernels_version.inc"
