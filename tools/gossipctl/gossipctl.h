// tools/gossipctl/gossipctl.h - the command line of the daemon's REST interface.
//
// Data goes to `out`, messages to `err`. Every failure says what happened, its probable cause and
// what to do. Needs neither LibTorch nor the daemon's code: the two share only REST.
#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <vector>

namespace gossipd {

enum class ExitCode : int {
  ok = 0,
  failed = 1,
  usage = 2,
  no_daemon = 3,
  not_found = 4,
  unauthorised = 5,
  refused_by_state = 6,
  timeout = 7,
  unhealthy = 8,
};

// `environment`: GOSSIPCTL_REST, GOSSIPCTL_TOKEN_FILE and GOSSIPCTL_CA_FILE are read, and COLUMNS,
// the width of the terminal that `out` is.
[[nodiscard]] ExitCode run_gossipctl(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment,
                                     std::ostream& out, std::ostream& err);

}  // namespace gossipd
