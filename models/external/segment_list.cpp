#include "models/external/segment_list.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "models/files/state_names.h"

namespace gossipd {

namespace {

constexpr std::string_view kind_names[] = {"parameter", "statistic", "local"};

Error bad(std::string text) { return Error{"bad-segments", std::move(text)}; }

std::string shape_text(const Segment& segment, const char* between) {
  std::string text;
  for (const std::int64_t extent : segment.shape)
    text += (text.empty() ? "" : between) + std::to_string(extent);
  return text;
}

bool parse_shape(std::string_view text, std::vector<std::int64_t>& out) {
  if (text == "-") return true;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + comma, extent);
    if (error != std::errc{} || end != text.data() + comma || extent < 1) return false;
    out.push_back(extent);
    if (comma == text.size()) return true;
    text.remove_prefix(comma + 1);
  }
}

std::string described(const Segment& segment) {
  const std::string shape = segment.shape.empty() ? "a scalar" : shape_text(segment, " x ");
  return segment.kind == SegmentKind::parameter
             ? shape
             : shape + " (" + std::string(kind_names[raw(segment.kind)]) + ")";
}

}  // namespace

std::string format_segment_list(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments)
    text += std::string(kind_names[raw(segment.kind)]) + ' ' +
            (segment.shape.empty() ? "-" : shape_text(segment, ",")) + ' ' + segment.name + '\n';
  return text;
}

Result<Schema> parse_segment_list(const std::string& text) {
  std::istringstream lines(text);
  std::vector<Segment> segments;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = "line " + std::to_string(segments.size() + 1);
    const std::size_t kind_end = std::min(line.find(' '), line.size());
    const auto kind = std::ranges::find(kind_names, line.substr(0, kind_end));
    const std::size_t shape_end = line.find(' ', kind_end + 1);
    Segment segment;
    if (kind == std::end(kind_names) || shape_end == std::string::npos ||
        !parse_shape(std::string_view(line).substr(kind_end + 1, shape_end - kind_end - 1),
                     segment.shape))
      return bad(where + " is not 'parameter|statistic|local EXTENT,… NAME'");
    segment.kind = static_cast<SegmentKind>(kind - std::begin(kind_names));
    segment.name = line.substr(shape_end + 1);
    if (segments.size() >= segments_max) return bad("more than 65536 segments");
    segments.push_back(std::move(segment));
  }
  return schema_of(std::move(segments));
}

JobFile content_of_segment_list(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return JobFile{.hash_high = hash.high64, .hash_low = hash.low64, .bytes = text.size()};
}

Result<Schema> schema_of(std::vector<Segment> segments) {
  std::set<std::string_view> names;
  std::uint64_t at = 0;
  bool trains = false;
  for (Segment& segment : segments) {
    if (segment.name.empty()) return bad("a segment has no name");
    if (!names.insert(segment.name).second)
      return bad("two segments are called '" + segment.name + "'; give each a name of its own");
    segment.offset = at;
    segment.size = 1;
    for (const std::int64_t extent : segment.shape) {
      const auto factor = static_cast<std::uint64_t>(extent);
      if (extent < 1 || segment.size > model_floats_max / factor)
        return bad("segment '" + segment.name + "' has an impossible shape");
      segment.size *= factor;
    }
    if (segment.size > model_floats_max - at) return bad("the model has more than 2^32 floats");
    at += segment.size;
    trains |= segment.kind == SegmentKind::parameter;
  }
  if (!trains) return bad("no segment is a parameter, so there is nothing to train");
  if (auto reason = ambiguous_name(segments)) return bad(std::move(*reason));
  return Schema::build(std::move(segments));
}

std::optional<std::string> first_difference(const Schema& here, const Schema& job) {
  const auto& ours = here.segments();
  const auto& theirs = job.segments();
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] == theirs[i]) continue;
    if (ours[i].name != theirs[i].name)
      return "tensor " + std::to_string(i + 1) + " is '" + ours[i].name + "' here and '" +
             theirs[i].name + "' in the job";
    return "'" + ours[i].name + "' is " + described(ours[i]) + " here and " + described(theirs[i]) +
           " in the job";
  }
  if (ours.size() > theirs.size())
    return "'" + ours[theirs.size()].name + "' is not in the job, which has " +
           std::to_string(theirs.size()) + " tensors";
  if (ours.size() < theirs.size())
    return "'" + theirs[ours.size()].name + "' of the job is missing here";
  return std::nullopt;
}

}  // namespace gossipd
