// daemon/config/check_whole.h - what no single setting can see: names, and settings that contradict
// each other.
#pragma once

#include "daemon/config/config.h"

namespace gossipd {

// Code "bad-config".
[[nodiscard]] std::optional<Error> check_whole(const DaemonConfig&);

}  // namespace gossipd
