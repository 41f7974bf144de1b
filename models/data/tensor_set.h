// models/data/tensor_set.h - pairs of tensors in safetensors files: one of inputs, one of targets,
// samples along the first axis.
//
// Inputs: floats (F32, F16, BF16, F64, integers; U8 as pixels, scaled to [0, 1]), normalised by
// mean and deviation; with a `vocabulary` integers below it. Targets: integers below `classes`, or
// floats as they are. Values are checked when the files are opened (range, finite, for bce in [0,
// 1]) and stay on disk: a set may be larger than memory.
#pragma once

#include "models/data/data_set.h"
#include "models/files/data_file.h"
#include "models/files/safetensors.h"

namespace gossipd {

class TensorSet : public DataSet {
 public:
  // Codes "no-data", "bad-data".
  static Result<std::shared_ptr<const DataSet>> open(const DataSpec&,
                                                     const std::vector<std::string>& names,
                                                     const LoadOptions&);

  [[nodiscard]] std::size_t count() const override { return begins_.back(); }
  void write(std::size_t index, const Variation*, const Batch&, std::size_t at) const override;

 private:
  // A tensor of one file; rows are samples.
  struct Column {
    TensorType type = TensorType::f32;
    std::uint64_t offset = 0;  // bytes, in the file
    std::uint64_t row_bytes = 0;
  };
  struct Pair {
    DataFile file;
    Column inputs;
    Column targets;
  };

  explicit TensorSet(const DataSpec&);
  [[nodiscard]] std::optional<Error> append(DataFile file);
  [[nodiscard]] std::optional<Error> check(std::size_t pair) const;
  // Of one row, as it lies in the file.
  void write_inputs(const Column&, const std::byte* raw, const Batch&, std::size_t at) const;
  void write_targets(const Column&, const std::byte* raw, const Batch&, std::size_t at) const;

  const DataSpec spec_;
  std::vector<Pair> pairs_;
  std::vector<std::size_t> begins_ = {0};  // of each file, in samples; and the end
};

}  // namespace gossipd
