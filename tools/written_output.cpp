#include "tools/written_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "core/base/disk_full.h"

namespace gossipd {

int exit_code_once_written(const std::string& program, int code) {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return code;
  const int error = errno;
  const std::string reason = error == 0 ? "" : std::string(" (") + std::strerror(error) + ")";
  std::cerr << program << ": standard output cannot be written" << reason
            << "; what it was sent to lacks a part" << disk_hint(error) << "\n";
  return code == 0 ? 1 : code;
}

}  // namespace gossipd
