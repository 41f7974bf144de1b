// core/codec/codec.h - how the difference between a model block and its replica becomes bytes.
//
// A delta is `target − published`, quantised. encode() advances `published` by exactly the value
// that apply() will add to the other end's replica, so the two stay bit-identical and whatever the
// quantiser lost stays in `target − published`, to be carried by the next delta: that is the error
// feedback, there is no second buffer. Bit-exact on every CPU: a quantised value is
// `q · scale` with |q| ≤ 127 and a bf16 scale of bounded exponent, so the product is exact in
// fp32 and only one rounding (the addition) remains. The bytes are specified, with worked examples,
// in FORMAT.md beside this file. Pure functions; any thread.
#pragma once

#include <optional>

#include "core/base/types.h"

namespace gossipd {

enum class CodecId : std::uint8_t {
  mirror = 0,    // keyframe without payload: "what I publish to you := what you publish to me"
  keyframe = 1,  // the block itself, fp32, absolute
  fp32 = 2,      // difference, fp32
  bf16 = 3,      // difference, bf16
  int8 = 4,      // groups of `quantiser_group` floats share one bf16 scale
  int4 = 5,
  ternary = 6,  // −s, 0, +s, five to a byte
  // chunks of `top_k_chunk` floats: k indices (Elias-Fano), a 2-bit value for each and two bf16
  // magnitudes
  top_k = 7,
};

inline constexpr std::size_t quantiser_group = 256;
inline constexpr std::size_t top_k_chunk = 1024;
inline constexpr std::size_t top_k_keep_max = 512;
inline constexpr std::size_t top_k_keep_useful = 256;  // beyond, ternary says more with the bits
// Differences are encoded between values of at most this magnitude.
inline constexpr float value_max = 0x1p99f;

struct Codec {
  CodecId id = CodecId::int8;
  // top_k only: entries kept per full chunk, 1 … top_k_keep_max; shorter chunks keep in proportion,
  // at least 1
  std::uint16_t keep = 32;
  auto operator<=>(const Codec&) const = default;
};

[[nodiscard]] const char* to_string(CodecId);
// Whether the id is one of the above and, for top_k, `keep` is within its range.
[[nodiscard]] bool is_valid(Codec);
// "fp32", "bf16", "int8", "int4", "ternary", "top_k" or "top_k:31"; nullopt on anything else.
[[nodiscard]] std::optional<Codec> parse_codec(const std::string& text);

// As parse_codec() reads it: "top_k:64".
[[nodiscard]] std::string to_text(Codec);
// Of a large block.
[[nodiscard]] double bits_per_float(Codec);
// The codec with about `factor` times the bits, int8 at most; the same one for a factor of 1 or
// less, and from int8 on.
[[nodiscard]] Codec finer(Codec, double factor);

// Bytes of the payload of a block of `floats` floats; the same for every content. 0 when not
// is_valid().
[[nodiscard]] std::size_t encoded_size(Codec, std::size_t floats);

// Encodes `target − published` into `out` (exactly encoded_size() bytes) and advances `published`.
// `target` and `published` have one size. Not for `mirror`, which has no payload. `published` is
// within ±value_max, as zeros, keyframes and earlier deltas have left it. False, with nothing
// changed in `published`, when a value of `target` is NaN, infinite or beyond ±value_max (keyframe:
// NaN or infinite); `out` then holds nothing of use.
[[nodiscard]] bool encode(Codec, std::span<const float> target, std::span<float> published,
                          std::span<std::byte> out);

enum class ApplyError : std::uint8_t { none, wrong_size, not_finite, too_large, malformed };
[[nodiscard]] const char* to_string(ApplyError);

// Adds the decoded delta to `received` (keyframe: replaces it). Everything is checked first:
// on any error `received` is bit-identical to before. `magnitude_max` ≥ 0 bounds the absolute value
// of a single decoded difference (keyframe: of a single value); int8 and int4 are refused when the
// largest value of a scale (127 or 7 times it) exceeds it, whether or not a code uses it. `mirror`
// is not handled here: wrong_size.
[[nodiscard]] ApplyError apply(Codec, std::span<const std::byte> payload, std::span<float> received,
                               float magnitude_max);

}  // namespace gossipd
