#include "tests/sim/virtual_cluster.h"
