// net/hard_links.h - whether a file system can give a file a second name.
#pragma once

#include <cerrno>

namespace gossipd {

// Of the `error` with which link() failed: the file system knows no links (SMB, exFAT), or has none
// left for this file.
[[nodiscard]] inline bool knows_no_links(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

}  // namespace gossipd
