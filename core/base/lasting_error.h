// core/base/lasting_error.h - whether what the operating system refuses waits for a person.
#pragma once

#include <cerrno>

namespace gossipd {

// Of an `error` with which a path was refused: it stays so until somebody changes the path or its
// rights. Others (a disk or a server that fails, no room, no descriptor) may pass by themselves.
[[nodiscard]] inline bool is_lasting(int error) {
  return error == EACCES || error == EPERM || error == ENOTDIR || error == EISDIR ||
         error == ENAMETOOLONG || error == ELOOP || error == EROFS || error == EEXIST;
}

}  // namespace gossipd
