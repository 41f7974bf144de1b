// tools/gossipctl/top.h - a node and its cluster on a terminal, renewed every second.
#pragma once

#include <string>

#include "tools/gossipctl/commands.h"

namespace gossipd {

// Ends with the key q, or once the node's phase is `until` (empty: never). The terminal is as it
// was before, however it ends: keys, signals or a lost daemon. Without a terminal to draw on it
// prints a line of progress every 10 s.
ExitCode top(const DaemonClient&, Console&, const std::string& until);

}  // namespace gossipd
