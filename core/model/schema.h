// core/model/schema.h - what the flat model vector consists of, and the blocks it is exchanged in.
//
// A model is one vector of P floats. The schema names its segments: {name, shape, offset, kind}.
// A block is a run of at most `block_floats_max` floats that never crosses a segment: the unit of
// versioning, triggering, encoding, hashing and resync. Immutable once built; any thread.
//
// Between two segments may lie a gap of floats that are always 0, so that the second one begins
// where vector instructions and device kernels want it: see aligned_offset.
#pragma once

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

enum class SegmentKind : std::uint8_t {
  parameter,  // trained by gradients: mixed and predicted
  statistic,  // batch-norm means and variances: averaged only, never predicted
  local,      // counters and the like: never leaves the node
};

struct Segment {
  std::string name;
  std::vector<std::int64_t> shape;  // empty = scalar
  std::uint64_t offset = 0;         // floats, from the start of the flat vector
  std::uint64_t size = 0;           // floats = product of shape
  SegmentKind kind = SegmentKind::parameter;
  auto operator<=>(const Segment&) const = default;
};

inline constexpr std::size_t block_floats_max = 65536;
inline constexpr std::size_t segments_max = 65536;
inline constexpr std::uint64_t model_floats_max = 4ull << 30;
inline constexpr std::uint64_t alignment_floats = 4;  // 16 bytes

// The first offset from `end` on at which a segment is aligned.
[[nodiscard]] constexpr std::uint64_t aligned_offset(std::uint64_t end) {
  return (end + alignment_floats - 1) / alignment_floats * alignment_floats;
}

struct Block {
  std::uint64_t offset = 0;  // floats
  std::uint32_t size = 0;    // floats, 1 … block_floats_max
  SegmentKind kind = SegmentKind::parameter;
  [[nodiscard]] std::span<float> of(std::span<float> flat) const {
    return flat.subspan(offset, size);
  }
  [[nodiscard]] std::span<const float> of(std::span<const float> flat) const {
    return flat.subspan(offset, size);
  }
};

class Schema {
 public:
  Schema() = default;
  // Segments in order from offset 0, each where the one before ends or at the next aligned offset.
  // Error "bad-schema" otherwise.
  static Result<Schema> build(std::vector<Segment> segments);

  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  // Exchanged blocks only: `local` segments have none.
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  [[nodiscard]] std::uint64_t floats() const { return floats_; }  // gaps included
  // Of names, shapes, kinds, order and block size, not of gaps; equal on nodes that may exchange.
  [[nodiscard]] SchemaHash hash() const { return hash_; }

 private:
  std::vector<Segment> segments_;
  std::vector<Block> blocks_;
  std::uint64_t floats_ = 0;
  SchemaHash hash_{};
};

}  // namespace gossipd
