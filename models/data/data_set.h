// models/data/data_set.h - samples by index, whatever files they come from, written straight into a
// batch.
//
// A set is checked as a whole when it is loaded (counts, shapes, labels, tokens), so that reading
// a sample can fail only where a file changes or vanishes meanwhile, or an image is damaged: then
// DataError, with the file's name. Immutable but for caches; write() may be called from several
// threads at once.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "core/base/result.h"
#include "core/base/types.h"
#include "models/job/data_spec.h"

namespace gossipd {

// Room for some samples, one after another, in memory of the caller: floats or integers as
// SampleShape::element says.
struct Batch {
  using Values = std::variant<std::span<float>, std::span<std::int64_t>>;
  Values inputs;
  Values targets;
};

// What differs between two visits to a sample. Seeds, so that it is the same however and wherever
// the batch is made.
struct Variation {
  std::uint64_t visit = 0;  // of this sample at this position of this shard
  std::uint64_t epoch = 0;  // the same for all shards
};

class DataSet {
 public:
  explicit DataSet(const DataSpec& spec)
      : input_(spec.input()), target_(spec.target()), classes_(spec.classes) {}
  virtual ~DataSet() = default;
  DataSet(const DataSet&) = delete;
  DataSet& operator=(const DataSet&) = delete;

  [[nodiscard]] virtual std::size_t count() const = 0;
  // Writes sample `index` to place `at` of the batch; without `variation` as it is, for evaluation.
  virtual void write(std::size_t index, const Variation* variation, const Batch& batch,
                     std::size_t at) const = 0;
  // Nothing where a sample is not of one class.
  [[nodiscard]] virtual std::optional<std::int64_t> label(std::size_t /*index*/) const {
    return std::nullopt;
  }

  [[nodiscard]] const SampleShape& input() const { return input_; }
  [[nodiscard]] const SampleShape& target() const { return target_; }
  [[nodiscard]] std::int64_t classes() const { return classes_; }  // of the targets; 0: floats

 private:
  SampleShape input_;
  SampleShape target_;
  std::int64_t classes_;
};

// `length` values for place `at`.
template <typename T>
[[nodiscard]] std::span<T> place(const Batch::Values& values, std::size_t at, std::size_t length) {
  return std::get<std::span<T>>(values).subspan(at * length, length);
}

struct DataSets {
  std::shared_ptr<const DataSet> train;
  std::shared_ptr<const DataSet> held_out;  // null: the job has none
  // What lies in folders of images and is none, in words: "16 .webp, 1 link to a folder".
  std::string left_out = {};
};

struct LoadOptions {
  std::string directory;
  // of the job: which samples validation_fraction holds out
  std::uint64_t seed = 0;
  bool held_out = true;  // load the held-out set as well
  // False: only the counts are wanted, and what lies on the disk is not read for its values.
  bool check_values = true;
  std::uint64_t image_cache_bytes = 1ull << 30;  // of decoded images, in each of the two sets
};

// Reads and checks the files. Codes "no-data" (names the file looked for and the way out),
// "bad-data".
[[nodiscard]] Result<DataSets> load_data(const DataSpec&, const LoadOptions&);

}  // namespace gossipd
