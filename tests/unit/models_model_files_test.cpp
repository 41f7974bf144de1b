// Memory of whole models in files without a name.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "core/base/large_memory.h"
#include "core/exchange/replica.h"
#include "models/devices/model_files.h"

using namespace gossipd;

namespace {

constexpr std::size_t many = std::size_t{4} << 20, few = 1000;

struct Mapping {
  std::string file;   // empty: none
  std::string flags;  // of /proc/PID/smaps
};

Mapping mapping_of(const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream file("/proc/self/smaps");
  Mapping found;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= at && at < end;
      const std::size_t path = line.find('/');
      if (inside && path != std::string::npos) found.file = line.substr(path);
    }
    if (inside && line.starts_with("VmFlags:")) found.flags = line;
  }
  return found;
}

// A directory on a disk, for the time of a test.
class DiskDirectory {
 public:
  DiskDirectory()
      : path_(std::filesystem::current_path() / ("model-files-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~DiskDirectory() {
    (void)use_model_files("");
    std::filesystem::remove_all(path_);
  }
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("models in files keep their values, and leave no file behind") {
  const DiskDirectory directory;
  REQUIRE_FALSE(use_model_files(directory.path()));
  {
    std::vector<float> buffer = large_zeros(many);
    const std::vector<float> small = large_zeros(few);
    const auto array = large_array<std::uint16_t>(many);
    const std::string place = directory.path().string();
    CHECK(mapping_of(buffer.data() + many / 2).file.starts_with(place));
    CHECK(mapping_of(array.get() + many / 2).file.starts_with(place));
    CHECK(mapping_of(small.data()).file.empty());
    CHECK(std::filesystem::is_empty(directory.path()));

    CHECK(std::ranges::count(buffer, 0.0f) == static_cast<std::ptrdiff_t>(many));
    for (std::size_t i = 0; i < many; ++i) {
      buffer[i] = static_cast<float>(i);
      array[i] = static_cast<std::uint16_t>(i);
    }
    const std::vector<float> copy = buffer;
    bool same = true;
    for (std::size_t i = 0; i < many; ++i)
      same = same && copy[i] == static_cast<float>(i) && array[i] == static_cast<std::uint16_t>(i);
    CHECK(same);
    // All but the ends, which share their pages with other memory.
    CHECK(model_files().bytes <= 6 * many);
    CHECK(model_files().bytes > 6 * many - (1 << 18));
    CHECK(model_files().bytes_refused == 0);
  }
  const std::vector<float> after(many, 1.0f);  // in what has been freed
  CHECK(std::ranges::count(after, 1.0f) == static_cast<std::ptrdiff_t>(many));
}

TEST_CASE("a replica lies in a file") {
  const DiskDirectory directory;
  REQUIRE_FALSE(use_model_files(directory.path()));
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    const std::uint64_t before = model_files().bytes;
    Replica replica;
    replica.reset(many, narrow);
    CHECK(model_files().bytes - before > (narrow ? 2 : 4) * many - (1 << 18));
  }
}

TEST_CASE("a directory that cannot hold models is refused, and a full disk means main memory") {
  const DiskDirectory directory;
  CHECK(*use_model_files(directory.path() / "missing") == "No such file or directory");
  if (std::filesystem::is_directory("/dev/shm"))
    CHECK(*use_model_files("/dev/shm") == "it is in main memory (tmpfs) itself");

  REQUIRE_FALSE(use_model_files(directory.path()));
  std::filesystem::remove(directory.path());  // no file can be made there any more
  const std::vector<float> buffer = large_zeros(many);
  CHECK(std::ranges::count(buffer, 0.0f) == static_cast<std::ptrdiff_t>(many));
  CHECK(model_files().bytes == 0);
  CHECK(model_files().bytes_refused > 4 * many - (1 << 18));
  CHECK(model_files().why_refused == "No such file or directory");
}
