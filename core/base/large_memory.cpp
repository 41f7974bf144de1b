#include "core/base/large_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>  // NOLINT: mkostemp is POSIX
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace gossipd {
namespace {

constexpr std::size_t large_bytes = std::size_t{4} << 20;
constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;
constexpr std::uintptr_t file_page = std::uintptr_t{64} << 10;  // a multiple of every page size

struct Files {
  std::mutex mutex;
  std::string directory;  // empty: none
  ModelFiles counts;
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

}  // namespace

std::optional<std::string> use_model_files(const std::string& directory) {
  const std::lock_guard lock(files().mutex);
  files().directory = directory;
  files().counts = {};
  if (directory.empty()) return std::nullopt;
  NamelessFile file(directory);
  if (file.is_in_main_memory()) return "it is in main memory (tmpfs) itself";
  if (!file.reserve(large_bytes)) return reason(file.error());
  return std::nullopt;
}

ModelFiles model_files() {
  const std::lock_guard lock(files().mutex);
  return files().counts;
}

bool put_in_file(void* memory, std::size_t bytes) {
  if (bytes < large_bytes) return false;
  const std::lock_guard lock(files().mutex);
  if (files().directory.empty()) return false;
  const Pages pages(memory, bytes, file_page);
  NamelessFile file(files().directory);
  if (file.replace(pages)) {
    files().counts.bytes += pages.bytes;
    return true;
  }
  files().counts.bytes_refused += pages.bytes;
  files().counts.why_refused = reason(file.error());
  return false;
}

std::vector<float> large_zeros(std::size_t floats) {
  std::vector<float> values;
  values.reserve(floats);
  const std::size_t bytes = sizeof(float) * floats;
  if (!put_in_file(values.data(), bytes) && bytes >= large_bytes) {
    const Pages pages(values.data(), bytes, huge_page);
    // A kernel without huge pages refuses.
    (void)::madvise(pages.at(), pages.bytes, MADV_HUGEPAGE);
  }
  values.resize(floats);
  return values;
}

}  // namespace gossipd
