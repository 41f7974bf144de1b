#include "net/peer/cluster_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <vector>

namespace gossipd {
namespace {

constexpr const char* format_name = "gossipd-key-1";
constexpr std::size_t file_bytes_max = 4096;

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

bool parse_secret(const std::string& hex, std::array<std::byte, 32>& out) {
  if (hex.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint64_t value = 0;
    if (!from_hex(hex.substr(2 * i, 2), value)) return false;
    out[i] = static_cast<std::byte>(value);
  }
  return true;
}

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

Error write_error(const std::string& path) {
  return Error{"key-write", "cannot write the cluster key " + path + ": " + system_error_text()};
}

}  // namespace

ClusterKey::~ClusterKey() { OPENSSL_cleanse(secret.data(), secret.size()); }

Result<ClusterKey> generate_cluster_key() {
  ClusterKey key;
  const bool ok = RAND_bytes(reinterpret_cast<unsigned char*>(&key.id), sizeof key.id) == 1 &&
                  RAND_priv_bytes(reinterpret_cast<unsigned char*>(key.secret.data()), static_cast<int>(key.secret.size())) == 1;
  if (!ok) return Error{"random", "the operating system gave no random bytes for a cluster key"};
  return key;
}

std::string format_cluster_key(const ClusterKey& key) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text = std::string(format_name) + " " + to_hex(key.id) + " ";
  for (const std::byte b : key.secret) {
    text += digits[std::to_integer<unsigned>(b) >> 4];
    text += digits[std::to_integer<unsigned>(b) & 15];
  }
  return text + "\n";
}

Result<ClusterKey> parse_cluster_key(const std::string& text) {
  std::istringstream words(text);
  std::string format, id, secret, rest;
  words >> format >> id >> secret;
  if (format != format_name) {
    return Error{"key-format", std::string("it does not begin with '") + format_name + "': not a cluster key, or one of a newer gossipd"};
  }
  ClusterKey key;
  if (id.size() != 16 || !from_hex(id, key.id)) return Error{"key-format", "the key id is not 16 hex digits"};
  if (!parse_secret(secret, key.secret)) return Error{"key-format", "the secret is not 64 hex digits"};
  if (words >> rest) return Error{"key-format", "there is text after the secret: a key file is one line"};
  return key;
}

std::optional<Error> write_cluster_key(const std::string& path, const ClusterKey& key) {
  const std::string draft = path + ".new-" + std::to_string(::getpid());
  ::unlink(draft.c_str());  // of a process with our number that died here
  {
    const FileDescriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.ok()) return write_error(path);
    if (::fchmod(file.get(), 0600) != 0 || !write_all(file.get(), format_cluster_key(key)) || ::fsync(file.get()) != 0) {
      const Error error = write_error(path);
      ::unlink(draft.c_str());
      return error;
    }
  }
  // link() rather than rename(): it fails if the name is taken, so no key is ever replaced.
  const int linked = ::link(draft.c_str(), path.c_str());
  const int link_errno = errno;
  ::unlink(draft.c_str());
  if (linked != 0) {
    errno = link_errno;
    if (errno == EEXIST) {
      return Error{"key-exists", "the key file " + path + " exists already and is not replaced; to start a new cluster name another file"};
    }
    return write_error(path);
  }
  std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok() || ::fsync(directory.get()) != 0) return write_error(path);
  return std::nullopt;
}

Result<ClusterKey> read_cluster_key(const std::string& path, SharedKeyFile shared) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.ok() && errno == ENOENT) {
    return Error{"key-missing", "there is no key file " + path + "; copy it from a node of the cluster (its first node wrote it)"};
  }
  struct stat status {};
  if (!file.ok() || ::fstat(file.get(), &status) != 0) {
    return Error{"key-read", "cannot read the key file " + path + ": " + system_error_text()};
  }
  if (!S_ISREG(status.st_mode)) return Error{"key-read", "the key file " + path + " is not a regular file"};
  if (shared == SharedKeyFile::refuse && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{"key-permissions", "the key file " + path + " is open to other users, and whoever holds it controls the cluster; run: chmod 600 " + path};
  }
  std::string text(file_bytes_max + 1, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{"key-read", "cannot read the key file " + path + ": " + system_error_text()};
    if (n == 0) break;
    filled += static_cast<std::size_t>(n);
  }
  if (filled > file_bytes_max) return Error{"key-format", "the key file " + path + " is longer than a cluster key"};
  text.resize(filled);
  Result<ClusterKey> key = parse_cluster_key(text);
  OPENSSL_cleanse(text.data(), text.size());
  if (!key) return Error{key.error().code, "the key file " + path + " cannot be used: " + key.error().text};
  return key;
}

}  // namespace gossipd
