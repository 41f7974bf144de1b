// core/base/disk_full.h - whether a failed write asks for a look at the disk. Pure; any thread.
#pragma once

#include <cerrno>

namespace gossipd {

// To go behind what was not written. `reason`: errno, or 0 where the system did not say.
[[nodiscard]] inline const char* disk_hint(int reason) {
  switch (reason) {
    case 0:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EIO: return ": is the disk full?";
    default: return "";
  }
}

}  // namespace gossipd
