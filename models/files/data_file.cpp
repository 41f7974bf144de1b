#include "models/files/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gossipd {

namespace {

// Only permissions wait for a person. A disk or a server that fails, or a lack of descriptors, may
// pass.
Error unreadable(const std::string& path, const char* what, int number) {
  if (number == EACCES || number == EPERM)
    return bad_data(path, std::string(what) + ": " + std::strerror(number));
  return Error{data_unreadable, path + ": " + what + ": " + std::strerror(number) +
                                    "; look for the disk's or the server's errors in the system's "
                                    "log, or point --data at another directory"};
}

}  // namespace

Error bad_data(const std::string& origin, const std::string& why) {
  return Error{"bad-data", origin + ": " + why +
                               "; fetch the file again, or point --data at another directory"};
}

Error wrong_data(const std::string& origin, const std::string& why) {
  return Error{"bad-data", origin + ": " + why + "; write the file again without that"};
}

Error bad_data(const std::string& origin, const DataError& error) {
  if (error.code() == data_unreadable) return Error{error.code(), error.what()};
  return bad_data(origin, std::string(error.what()));
}

Error no_data(const std::string& directory, const std::string& names, const std::string& hint) {
  std::error_code error;
  const bool usable = directory.empty() || std::filesystem::is_directory(directory, error);
  return Error{"no-data",
               (directory.empty() ? std::string("no data directory is set") : directory) + ": " +
                   (usable ? "" : "is no directory, so ") + names +
                   " there; point --data at the directory that has it" +
                   (hint.empty() ? "" : " (" + hint + ")")};
}

std::optional<std::filesystem::path> find_data_file(const std::string& directory,
                                                    const std::string& name,
                                                    std::initializer_list<const char*> folders) {
  const std::filesystem::path root(directory);
  std::error_code error;
  if (std::filesystem::is_regular_file(root / name, error)) return root / name;
  for (const char* folder : folders)
    if (std::filesystem::is_regular_file(root / folder / name, error)) return root / folder / name;
  return std::nullopt;
}

Result<DataFile> DataFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO
  if (descriptor < 0) return unreadable(path.string(), "cannot be opened", errno);
  struct stat about {};
  const bool regular = ::fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
  DataFile file(path.string(), descriptor, static_cast<std::uint64_t>(about.st_size));
  if (!regular) return bad_data(path.string(), "is not a regular file");
  return file;
}

DataFile::DataFile(DataFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

DataFile::~DataFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void DataFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(unreadable(path_, "cannot be read", errno));
    if (got == 0)
      throw DataError(path_ + ": ends before byte " + std::to_string(offset + out.size()) +
                      "; it was longer when it was opened");
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

Result<Bytes> read_data_file(const std::filesystem::path& path, std::uint64_t bytes_max) {
  const auto file = DataFile::open(path);
  if (!file) return file.error();
  if (file->bytes() > bytes_max)
    return bad_data(path.string(), "is larger than " + std::to_string(bytes_max) + " bytes");
  Bytes bytes(file->bytes());
  try {
    file->read_at(0, bytes);
  } catch (const DataError& error) {
    return bad_data(path.string(), error);
  }
  return bytes;
}

}  // namespace gossipd
