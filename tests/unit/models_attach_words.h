// tests/unit/models_attach_words.h - a model of three segments, and how its process attaches.
#pragma once

#include <cstdint>
#include <vector>

#include "models/external/packets.h"
#include "models/external/segment_list.h"

namespace gossipd::test {

inline std::vector<Segment> segments() {
  return {{.name = "w", .shape = {2, 3}, .kind = SegmentKind::parameter},
          {.name = "mean", .shape = {2}, .kind = SegmentKind::statistic},
          {.name = "steps", .shape = {}, .kind = SegmentKind::local}};
}
inline Schema schema() { return *schema_of(segments()); }
inline constexpr std::uint64_t floats = 9;

inline attach::Attach attach_words(std::uint8_t run = 1) {
  return {.run = {run}, .floats = floats, .segments = 3, .step_samples = 64};
}

}  // namespace gossipd::test
