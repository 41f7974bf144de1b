// tools/bench/made_sets.h - a synthetic data set of each kind, with its usual shapes, and the speed
// of reading it.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "models/data/data_set.h"

namespace gossipd::bench {

struct MadeSet {
  const char* name;
  std::string table;          // of the job, below [data]
  std::uint64_t cache_bytes;  // of decoded images
  std::function<void(const std::filesystem::path&)> make;
};

[[nodiscard]] std::span<const MadeSet> made_sets();
[[nodiscard]] const MadeSet& made_set(const std::string& name);

// A directory that is deleted with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The throughput for an infinitely fast trainer: batches of `batch` samples by `threads` loader
// threads, for `seconds`.
struct Reading {
  std::size_t batch = 32;
  int threads = 1;
  double seconds = 2;
};
[[nodiscard]] double samples_per_second(const std::shared_ptr<const DataSet>&, const Reading&);

}  // namespace gossipd::bench
