#include "core/model/schema.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace gossipd {

Result<Schema> Schema::build(std::vector<Segment> segments) {
  if (segments.size() > segments_max)
    return Error{"bad-schema", "the model has " + std::to_string(segments.size()) +
                                   " segments; at most " + std::to_string(segments_max) +
                                   " are supported"};
  Schema schema;
  std::string text = "block " + std::to_string(block_floats_max);
  std::uint64_t without_gaps = 0;
  for (const Segment& segment : segments) {
    std::uint64_t size = 1;
    for (const std::int64_t extent : segment.shape) {
      if (extent < 0 ||
          (extent > 0 && size > model_floats_max / static_cast<std::uint64_t>(extent)))
        return Error{"bad-schema", "segment '" + segment.name + "' has an impossible shape"};
      size *= static_cast<std::uint64_t>(extent);
    }
    const bool follows =
        segment.offset == schema.floats_ || segment.offset == aligned_offset(schema.floats_);
    if (!follows || segment.size != size || segment.offset + size > model_floats_max)
      return Error{"bad-schema",
                   "segment '" + segment.name + "' does not follow the one before it"};
    if (segment.kind != SegmentKind::local)
      for (std::uint64_t at = 0; at < size; at += block_floats_max)
        schema.blocks_.push_back(
            Block{segment.offset + at,
                  static_cast<std::uint32_t>(std::min<std::uint64_t>(block_floats_max, size - at)),
                  segment.kind});
    schema.floats_ = segment.offset + size;
    text += '\n' + segment.name + ' ' + std::to_string(without_gaps) + ' ' +
            std::to_string(static_cast<int>(segment.kind));
    without_gaps += size;
    for (const std::int64_t extent : segment.shape) text += ' ' + std::to_string(extent);
  }
  schema.segments_ = std::move(segments);
  schema.hash_ = SchemaHash{XXH3_64bits(text.data(), text.size())};
  return schema;
}

}  // namespace gossipd
