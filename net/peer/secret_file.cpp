#include "net/peer/secret_file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/base/lasting_error.h"
#include "net/hard_links.h"

namespace gossipd {
namespace {

constexpr const char* draft_mark = ".new-";  // and the process' number
constexpr const char* link_mark = ".link-";
constexpr std::size_t process_digits_max = 7;  // PID_MAX_LIMIT is 2^22; a date has 8
constexpr std::chrono::hours old_draft_from{24};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

std::string system_error_text() { return std::strerror(errno); }

bool write_all(int fd, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    written += static_cast<std::size_t>(n);
  }
  return true;
}

Error read_error(const std::string& path, const SecretKind& kind) {
  const char* code = is_lasting(errno) ? "key-read" : "io-error";
  return Error{
      code, std::string("cannot read the ") + kind.name + " " + path + ": " + system_error_text()};
}
Error write_error(const std::string& path) {
  const int why = errno;
  std::string text = "cannot write " + path + ": " + system_error_text();
  const bool full = why == ENOSPC || why == EDQUOT;
  if (full) text += "; make room there, or name another file";
  if (why == ENOENT) text += "; create its directory, or name another file";
  if (why == EACCES || why == EPERM || why == EROFS) text += "; name a file that you may write";
  const bool lasting = why == ENOENT || is_lasting(why);
  return Error{full ? "no-space" : lasting ? "key-write" : "io-error", text};
}

// link() rather than rename() for a name that must be new: it fails if the name is taken. Where the
// file system knows no links (SMB, exFAT) an empty file takes the name first.
bool put_in_place(const std::string& draft, const std::string& path, Replace replace) {
  if (replace == Replace::yes && ::rename(draft.c_str(), path.c_str()) == 0) return true;
  bool linked = replace == Replace::no && ::link(draft.c_str(), path.c_str()) == 0;
  if (!linked && replace == Replace::no && knows_no_links(errno)) {
    const FileDescriptor place(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    linked = place.ok() && ::rename(draft.c_str(), path.c_str()) == 0;
  }
  const int why = errno;
  ::unlink(draft.c_str());
  errno = why;
  return linked;
}

// Some file systems cannot; then no previous file is kept.
void keep_previous(const std::string& path, const SecretText& successor) {
  const Result<SecretText> present = read_secret_file(path, SharedKeyFile::allow);
  if (!present || present->text() == successor.text()) return;
  const std::string draft = path + link_mark + std::to_string(::getpid());
  ::unlink(draft.c_str());
  if (::link(path.c_str(), draft.c_str()) != 0) return;
  (void)::rename(draft.c_str(), previous_secret(path).c_str());
  ::unlink(draft.c_str());  // rename() leaves it where both names were the same file already
}

// Which a crash left. Younger ones may be another process', on another machine too.
void remove_old_drafts(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const auto is_draft = [name = path.filename().string()](std::string_view other) {
    if (!other.starts_with(name)) return false;
    other.remove_prefix(name.size());
    if (!other.starts_with(draft_mark) && !other.starts_with(link_mark)) return false;
    other.remove_prefix(other.find('-') + 1);
    return !other.empty() && other.size() <= process_digits_max &&
           other.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const auto now = std::filesystem::file_time_type::clock::now();
  std::error_code error;  // then they stay
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (is_draft(entry->path().filename().string()) &&
        now - entry->last_write_time(gone) > old_draft_from && !gone)
      ::unlink(entry->path().c_str());
  }
}

// systemd hands a credential to the service's user by an access list, and stat() shows the rights
// of that as the group's. Nobody else can look into the directory.
bool is_credential(const std::string& path) {
  const char* given = std::getenv("CREDENTIALS_DIRECTORY");
  if (given == nullptr || *given != '/') return false;
  const std::filesystem::path folder(given);
  const std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  return whole.parent_path() == folder.lexically_normal();
}

}  // namespace

std::string previous_secret(const std::string& path) { return path + ".previous"; }

SecretText::~SecretText() { OPENSSL_cleanse(text_.data(), text_.size()); }

Result<SecretText> read_secret_file(const std::string& path, SharedKeyFile shared,
                                    const SecretKind& kind) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const std::string what = std::string("the ") + kind.name + " " + path;
  if (!file.ok() && errno == ENOENT)
    return Error{"key-missing",
                 std::string("there is no ") + kind.name + " " + path + "; " + kind.from};
  struct stat status {};
  if (!file.ok() || ::fstat(file.get(), &status) != 0) return read_error(path, kind);
  if (!S_ISREG(status.st_mode)) return Error{"key-read", what + " is not a regular file"};
  const mode_t others = is_credential(path) ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if (shared == SharedKeyFile::refuse && (status.st_mode & others) != 0) {
    return Error{"key-permissions", what + " is open to other users, and whoever holds it " +
                                        kind.power + "; run: chmod 600 " + path};
  }
  std::string text(secret_file_bytes_max + 1, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return read_error(path, kind);
    if (n == 0) break;
    filled += static_cast<std::size_t>(n);
  }
  if (filled > secret_file_bytes_max)
    return Error{"key-format", what + " is longer than such files are"};
  text.resize(filled);
  return SecretText(std::move(text));
}

std::optional<Error> why_not_readable_now(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char byte = 0;
  if (file.ok() && ::read(file.get(), &byte, 1) >= 0) return std::nullopt;
  if (errno == ENOENT || errno == EAGAIN || is_lasting(errno)) return std::nullopt;
  return Error{"io-error", path + " cannot be read: " + system_error_text() +
                               "; look for the disk's errors in the system's log"};
}

std::optional<Error> write_secret_file(const std::string& path, const SecretText& text,
                                       Replace replace) {
  const std::string draft = path + draft_mark + std::to_string(::getpid());
  ::unlink(draft.c_str());  // left by a dead process with our number
  {
    const FileDescriptor file(
        ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.ok()) return write_error(path);
    if (::fchmod(file.get(), 0600) != 0 || !write_all(file.get(), text.text()) ||
        ::fsync(file.get()) != 0) {
      const Error error = write_error(path);
      ::unlink(draft.c_str());
      return error;
    }
  }
  if (replace == Replace::yes) keep_previous(path, text);
  if (!put_in_place(draft, path, replace)) {
    if (replace == Replace::no && errno == EEXIST) {
      return Error{"key-exists", path +
                                     " exists already and is not replaced, since it may hold a "
                                     "secret; name another file, or remove it first"};
    }
    return write_error(path);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor directory(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok() || ::fsync(directory.get()) != 0) return write_error(path);
  remove_old_drafts(path);
  return std::nullopt;
}

}  // namespace gossipd
