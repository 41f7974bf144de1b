#include "models/files/regular_file.h"

#include <sys/statvfs.h>

namespace gossipd {

namespace {

const char* name_of(std::filesystem::file_type type) {
  switch (type) {
    case std::filesystem::file_type::directory: return "a directory";
    case std::filesystem::file_type::fifo: return "a FIFO";
    case std::filesystem::file_type::socket: return "a socket";
    case std::filesystem::file_type::character:
    case std::filesystem::file_type::block: return "a device";
    default: return "of an unknown kind";
  }
}

}  // namespace

std::optional<Error> refuse_irregular(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status) || std::filesystem::is_regular_file(status))
    return std::nullopt;
  return Error{"bad-file", path.string() + ": is " + name_of(status.type()) +
                               ", not a regular file; name a file, or put one in its place"};
}

bool is_read_only(const std::filesystem::path& path) {
  struct statvfs system {};
  return ::statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_RDONLY) != 0;
}

}  // namespace gossipd
