// models/external/segment_list.h - the tensors of an external job's model, as a list that two nodes
// can compare.
//
// The list is a file of the job's, one line for each segment:
//
//     parameter 64,3,3,3 conv1.weight
//     statistic 64 bn1.running_mean
//     local - steps
//
// kind, extents ('-': a scalar) and name, which may have spaces. Equal lists are equal bytes, so
// the job's hash holds for the list. Plain values; any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/model/schema.h"

namespace gossipd {

inline constexpr std::size_t segment_list_bytes_max = std::size_t{64} << 20;

[[nodiscard]] std::string format_segment_list(const std::vector<Segment>&);
// Fills in offsets and sizes. Code "bad-segments": the text names the line.
[[nodiscard]] Result<Schema> parse_segment_list(const std::string& text);
// The content as a job names it.
[[nodiscard]] JobFile content_of_segment_list(const std::string& text);

// Fills in offsets and sizes, in order. Code "bad-segments": a name that comes twice or is one of
// the optimiser's in checkpoints (state_names.h), no segment, nothing to train, too many floats.
[[nodiscard]] Result<Schema> schema_of(std::vector<Segment> segments);

// The first that differs, for a person: "'fc.weight' is 10 x 128 here and 10 x 96 in the job".
// Nothing: they are the same.
[[nodiscard]] std::optional<std::string> first_difference(const Schema& here, const Schema& job);

}  // namespace gossipd
