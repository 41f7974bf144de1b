// models/data/idx.h - reads IDX data sets (the format of MNIST and its successors), plain or
// gzipped.
//
// Format: bytes 0 0 TYPE RANK, then RANK big-endian 32-bit extents, then the values; only unsigned
// bytes (TYPE 8) are read. Nothing is allocated on the header's word: memory grows with bytes that
// are really there. Errors name the file, the reason and the way out. Torch-free; any thread.
#pragma once

#include "core/base/types.h"
#include "models/data/pixel_set.h"

namespace gossipd {

inline constexpr std::size_t idx_rank_max = 4;
inline constexpr std::uint64_t idx_bytes_max = 4ull << 30;  // after inflating

// Where Debian's package dataset-fashion-mnist puts the files.
inline constexpr const char* fashion_mnist_directory = "/usr/share/datasets/fashion-mnist";

struct IdxArray {
  std::vector<std::uint32_t> shape;
  std::vector<std::uint8_t> values;  // product of shape
};

// `file` is the whole file; gzip is recognised by its first bytes. Code "bad-data".
[[nodiscard]] Result<IdxArray> parse_idx(std::span<const std::byte> file, const std::string& origin,
                                         std::uint64_t bytes_max = idx_bytes_max);

enum class SamplePart { train, test };

// Finds NAME or NAME.gz in `directory` and checks counts, shape and labels against the job.
// Codes "no-data" (nothing there: says what to put where), "bad-data".
[[nodiscard]] Result<SampleSet> load_samples(const DataSpec&, SamplePart,
                                             const std::string& directory);

}  // namespace gossipd
