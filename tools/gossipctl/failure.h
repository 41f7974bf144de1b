// tools/gossipctl/failure.h - why a command failed, for people and scripts.
#pragma once

#include <ostream>
#include <string>

#include "tools/gossipctl/gossipctl.h"

namespace gossipd {

// What happened, the probable cause and what to do, a line each. The last two may be empty.
struct Failure {
  ExitCode code = ExitCode::failed;
  std::string what;
  std::string probably;
  std::string hint;
};
void print_failure(std::ostream& err, const Failure&);

}  // namespace gossipd
