#include "models/devices/model_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>  // NOLINT: mkostemp is POSIX
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/base/large_memory.h"

namespace gossipd {
namespace {

constexpr std::size_t trial_bytes = std::size_t{4} << 20;
constexpr std::uintptr_t file_page = std::uintptr_t{64} << 10;  // a multiple of every page size

// The directory is set before there is a model, so before other threads look at it.
struct Files {
  std::string directory;  // empty: none
  std::atomic<std::uint64_t> bytes = 0, bytes_refused = 0;
  std::atomic<int> error = 0;  // of the last refusal
};
Files& files() {
  static Files all;
  return all;
}

std::string reason(int error) { return std::strerror(error); }

// Only what whole pages can hold: what lies beside it is somebody else's.
struct Pages {
  Pages(const void* memory, std::size_t bytes, std::uintptr_t page)
      : begin((reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page),
        bytes((reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page - begin) {}
  [[nodiscard]] void* at() const { return reinterpret_cast<void*>(begin); }

  std::uintptr_t begin;
  std::size_t bytes;
};

// A file without a name.
class NamelessFile {
 public:
  explicit NamelessFile(const std::string& directory) {
    std::string name = directory + "/gossipd-model-XXXXXX";
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    error_ = descriptor_ < 0 ? errno : 0;
    if (descriptor_ >= 0) ::unlink(name.c_str());
  }
  ~NamelessFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  // Of all of these: false with error() where it fails.
  bool reserve(std::size_t bytes) {
    if (error_ == 0 && ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0)
      error_ = errno;
    return error_ == 0;
  }
  bool replace(const Pages& pages) {
    if (!reserve(pages.bytes)) return false;
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
    void* mapped = ::mmap(pages.at(), pages.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                          descriptor_, 0);
    if (mapped == MAP_FAILED) error_ = errno;
    return error_ == 0;
  }
  [[nodiscard]] bool is_in_main_memory() const {
    struct statfs system {};
    return error_ == 0 && ::fstatfs(descriptor_, &system) == 0 &&
           (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
  }
  [[nodiscard]] int error() const { return error_; }

 private:
  int descriptor_ = -1;
  int error_ = 0;
};

bool put(void* memory, std::size_t bytes) {
  const Pages pages(memory, bytes, file_page);
  NamelessFile file(files().directory);
  if (file.replace(pages)) {
    files().bytes += pages.bytes;
    return true;
  }
  files().error = file.error();
  files().bytes_refused += pages.bytes;
  return false;
}

}  // namespace

std::optional<std::string> use_model_files(const std::string& directory) {
  put_large_memory_by(nullptr);
  files().directory = directory;
  files().bytes = files().bytes_refused = 0;
  if (directory.empty()) return std::nullopt;
  NamelessFile file(directory);
  if (file.is_in_main_memory()) return "it is in main memory (tmpfs) itself";
  if (!file.reserve(trial_bytes)) return reason(file.error());
  put_large_memory_by(put);
  return std::nullopt;
}

ModelFiles model_files() {
  const std::uint64_t refused = files().bytes_refused;
  return {files().bytes, refused, refused > 0 ? reason(files().error) : std::string()};
}

}  // namespace gossipd
