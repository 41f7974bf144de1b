// tools/written_output.h - whether what a program printed has arrived where it was sent.
#pragma once

#include <string>

namespace gossipd {

// Flushes standard output, the last thing a program does. Returns its exit code: `code`, or 1 in
// place of 0 where a part was not written, with a sentence about that on standard error.
[[nodiscard]] int exit_code_once_written(const std::string& program, int code);

}  // namespace gossipd
