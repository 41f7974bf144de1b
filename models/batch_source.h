// models/batch_source.h - one shard of a data set in memory, handed out as normalised batches.
//
// Keeps bytes, not floats (a quarter of the memory), and only the shard's own samples.
// Batch by batch a pure function of the position; one thread.
#pragma once

#include <array>

#include "models/data_order.h"
#include "models/idx.h"

namespace gossipd {

class BatchSource {
 public:
  BatchSource(const DataSpec&, const SampleSet& whole_set, DataOrder order);

  [[nodiscard]] std::size_t shard_samples() const { return labels_.size(); }
  [[nodiscard]] std::size_t sample_floats() const { return sample_bytes_; }
  // labels.size() samples from `position` on; `images` has sample_floats() floats for each.
  void fill(Samples position, std::span<float> images, std::span<std::int64_t> labels);

 private:
  DataOrder order_;
  std::size_t sample_bytes_;
  std::vector<std::uint8_t> images_;
  std::vector<std::uint8_t> labels_;
  std::array<float, 256> normalised_;
  std::vector<std::uint32_t> picked_;
};

// (pixel / 255 - mean) / deviation for each byte.
[[nodiscard]] std::array<float, 256> normalisation(const DataSpec&);

}  // namespace gossipd
