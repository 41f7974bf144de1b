// tools/lab/references/model_codec.h - gossipd's codecs for whole models, as the references send
// them.
//
// Neighbouring parameters are encoded as one vector. Batch-norm statistics travel in bf16 whatever
// codec (but fp32) is asked for, as gossipd sends them: a coarse code can make a variance negative.
// Counters and the like (`local`) are as exact.
#pragma once

#include "core/codec/codec.h"
#include "core/model/schema.h"

namespace gossipd::lab {

class ModelCodec {
 public:
  explicit ModelCodec(Codec codec) : codec_(codec) {}  // all floats are parameters
  ModelCodec(Codec, const Schema&);

  // Encodes `target − replica`, advances `replica` by what the other end decodes, and returns the
  // number of bytes. `begin`: where the two lie in the model, in floats. Values that no codec
  // accepts (not finite) travel unchanged, so a diverged run stays diverged.
  std::uint64_t encode(std::size_t begin, std::span<const float> target, std::span<float> replica);

  [[nodiscard]] bool exact() const { return codec_.id == CodecId::fp32; }

 private:
  struct Run {
    std::size_t begin = 0;  // to the next one's
    Codec codec;
  };
  std::uint64_t encode_run(Codec, std::span<const float> target, std::span<float> replica);

  Codec codec_;
  std::vector<Run> runs_;  // in order from 0; neighbours differ in codec; empty: all in codec_
  Bytes bytes_;
};

}  // namespace gossipd::lab
