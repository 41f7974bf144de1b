// daemon/config/check_whole.h - what no single setting can see: names, and settings that contradict
// each other.
#pragma once

#include "daemon/config/config.h"

namespace gossipd {

// Code "bad-config".
[[nodiscard]] std::optional<Error> check_whole(const DaemonConfig&);
// Settings that others leave without effect, each with the way out.
[[nodiscard]] std::vector<std::string> warn_of_unused(const DaemonConfig&);
// The keys of those that are not the default and are about training within the daemon alone, as an
// external job's nodes do not.
[[nodiscard]] std::vector<std::string> settings_of_own_training(DaemonConfig);

}  // namespace gossipd
