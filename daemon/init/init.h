// daemon/init/init.h - `gossipd init`: looks at a directory of data and writes a job file for it.
#pragma once

#include <string>
#include <vector>

namespace gossipd {

// `arguments`: those after "init". Prints to standard output and error; returns the exit code.
// Never writes over a file without --force.
[[nodiscard]] int run_init(const std::vector<std::string>& arguments);

}  // namespace gossipd
