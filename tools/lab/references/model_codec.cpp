#include "tools/lab/references/model_codec.h"

#include <algorithm>

namespace gossipd::lab {

ModelCodec::ModelCodec(Codec codec, const Schema& schema) : codec_(codec) {
  if (exact()) return;
  for (const Segment& segment : schema.segments()) {
    const Codec own = segment.kind == SegmentKind::parameter ? codec : Codec{CodecId::bf16, 0};
    if (runs_.empty() || runs_.back().codec != own)
      runs_.push_back({static_cast<std::size_t>(segment.offset), own});
  }
}

std::uint64_t ModelCodec::encode(std::size_t begin, std::span<const float> target,
                                 std::span<float> replica) {
  if (runs_.empty()) return encode_run(codec_, target, replica);
  std::uint64_t bytes = 0;
  const std::size_t end = begin + target.size();
  for (std::size_t k = 0; k < runs_.size(); ++k) {
    const std::size_t run_end = k + 1 < runs_.size() ? runs_[k + 1].begin : end;
    const std::size_t from = std::max(begin, runs_[k].begin), to = std::min(end, run_end);
    if (from < to)
      bytes += encode_run(runs_[k].codec, target.subspan(from - begin, to - from),
                          replica.subspan(from - begin, to - from));
  }
  return bytes;
}

std::uint64_t ModelCodec::encode_run(Codec codec, std::span<const float> target,
                                     std::span<float> replica) {
  bytes_.resize(encoded_size(codec, target.size()));
  if (!gossipd::encode(codec, target, replica, bytes_)) std::ranges::copy(target, replica.begin());
  return bytes_.size();
}

}  // namespace gossipd::lab
