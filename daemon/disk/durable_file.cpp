#include "daemon/disk/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "models/files/regular_file.h"
#include "net/hard_links.h"

namespace gossipd {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

Error failed(const std::filesystem::path& path, const char* doing, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  const char* way_out = full ? "; free some space"
                        : error == EACCES || error == EPERM || error == EROFS
                            ? "; check who owns it and its mode"
                            : "; check the disk";
  return Error{full ? "no-space" : "io-error",
               path.string() + ": cannot " + doing + ": " + std::strerror(error) + way_out};
}

std::filesystem::path with_word(const std::filesystem::path& path, const std::string& word) {
  return path.parent_path() / (path.stem().string() + "." + word + path.extension().string());
}

std::optional<Error> write_new(const std::filesystem::path& path, std::string_view content) {
  // without waiting, if a FIFO lies there
  const Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0600));
  if (file.get() < 0) return failed(path, "create it", errno);
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(path, "write it", errno);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) return failed(path, "flush it", errno);
  return std::nullopt;
}

}  // namespace

std::optional<Error> flush_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) return failed(path, "flush it", errno);
  return std::nullopt;
}

std::optional<Error> flush_directory(const std::filesystem::path& directory) {
  const Descriptor handle(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0 || ::fsync(handle.get()) != 0) return failed(directory, "flush it", errno);
  return std::nullopt;
}

std::filesystem::path previous_of(const std::filesystem::path& path) {
  return with_word(path, "previous");
}

void set_aside(const std::filesystem::path& path) {
  std::error_code ignored;  // a damaged file that cannot be moved is only written over later
  std::filesystem::rename(path, with_word(path, "corrupt"), ignored);
}

std::optional<Error> write_durably(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path fresh = with_word(path, "new"), link = with_word(path, "link");
  if (auto error = write_new(fresh, content)) return error;
  // The current file gets its second name before it loses the first: one whole file lies there at
  // every moment. Where the file system knows no links (SMB, exFAT), for a moment only the previous
  // one, which a reader takes then.
  ::unlink(link.c_str());
  if (::link(path.c_str(), link.c_str()) == 0) {
    if (::rename(link.c_str(), previous_of(path).c_str()) != 0)
      return failed(path, "keep its previous version", errno);
    ::unlink(link.c_str());  // rename() leaves it where both names were the same file already
  } else if (knows_no_links(errno)) {
    if (::rename(path.c_str(), previous_of(path).c_str()) != 0 && errno != ENOENT)
      return failed(path, "keep its previous version", errno);
  } else if (errno != ENOENT) {
    return failed(path, "keep its previous version", errno);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return failed(path, "put it in place", errno);
  return flush_directory(path.parent_path());
}

Result<std::string> read_whole(const std::filesystem::path& path, std::size_t bytes_max) {
  if (auto refused = refuse_irregular(path)) return *refused;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0)
    return errno == ENOENT ? Error{"not-found", path.string() + ": does not exist"}
                           : failed(path, "open it", errno);
  std::string content;
  char buffer[16 * 1024];
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(path, "read it", errno);
    if (got == 0) return content;
    content.append(buffer, static_cast<std::size_t>(got));
    if (content.size() > bytes_max)
      return Error{"too-large", path.string() + ": is larger than " + std::to_string(bytes_max) +
                                    " bytes; it is none of ours"};
  }
}

}  // namespace gossipd
