#include "core/codec/codec.h"

#include <bit>
#include <charconv>

#include "core/base/result.h"
#include "core/codec/kernels.h"
#include "core/codec/kernels_format.h"

namespace gossipd {

static_assert(std::endian::native == std::endian::little,
              "payloads are little-endian and are written as they lie in memory");

namespace {

struct Name {
  CodecId id;
  const char* text;
};
constexpr Name names[] = {{CodecId::mirror, "mirror"},   {CodecId::keyframe, "keyframe"},
                          {CodecId::fp32, "fp32"},       {CodecId::bf16, "bf16"},
                          {CodecId::int8, "int8"},       {CodecId::int4, "int4"},
                          {CodecId::ternary, "ternary"}, {CodecId::top_k, "top_k"}};

}  // namespace

const char* to_string(CodecId id) {
  for (const Name& name : names) {
    if (name.id == id) return name.text;
  }
  return "unknown";
}

const char* to_string(ApplyError error) {
  switch (error) {
    case ApplyError::none: return "none";
    case ApplyError::wrong_size: return "wrong-size";
    case ApplyError::not_finite: return "not-finite";
    case ApplyError::too_large: return "too-large";
    case ApplyError::malformed: return "malformed";
  }
  return "unknown";
}

bool is_valid(Codec codec) {
  if (raw(codec.id) > raw(CodecId::top_k)) return false;
  return codec.id != CodecId::top_k || (codec.keep >= 1 && codec.keep <= top_k_keep_max);
}

std::optional<Codec> parse_codec(const std::string& text) {
  const std::string prefix = "top_k:";
  if (text.starts_with(prefix)) {
    Codec codec{CodecId::top_k, 0};
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + prefix.size(), end, codec.keep);
    if (error != std::errc{} || rest != end || !is_valid(codec)) return std::nullopt;
    return codec;
  }
  for (const Name& name : names) {
    if (text == name.text && raw(name.id) >= raw(CodecId::fp32)) return Codec{name.id};
  }
  return std::nullopt;
}

std::string to_text(Codec codec) {
  return codec.id == CodecId::top_k ? "top_k:" + std::to_string(codec.keep) : to_string(codec.id);
}

double bits_per_float(Codec codec) {
  constexpr std::size_t many = std::size_t{1} << 20;
  return 8.0 * static_cast<double>(encoded_size(codec, many)) / static_cast<double>(many);
}

Codec finer(Codec codec, double factor) {
  const double wanted = bits_per_float(codec) * factor;
  const double keep = codec.keep * factor;
  if (factor <= 1 || !is_valid(codec)) return codec;
  if (codec.id == CodecId::top_k && keep <= static_cast<double>(top_k_keep_useful))
    return {CodecId::top_k, static_cast<std::uint16_t>(keep)};
  // The largest that takes at most a quarter more than that; none of them coarser than what was
  // asked for.
  Codec best = codec;
  for (const CodecId id : {CodecId::ternary, CodecId::int4, CodecId::int8}) {
    const Codec next{id};
    if (bits_per_float(next) > bits_per_float(best) && (bits_per_float(next) <= 1.25 * wanted))
      best = next;
  }
  return best;
}

std::size_t encoded_size(Codec codec, std::size_t floats) {
  if (!is_valid(codec)) return 0;
  const std::size_t groups = (floats + quantiser_group - 1) / quantiser_group;
  const std::size_t full = floats / quantiser_group;
  const std::size_t tail = floats % quantiser_group;
  switch (codec.id) {
    case CodecId::mirror: return 0;
    case CodecId::keyframe:
    case CodecId::fp32: return 4 * floats;
    case CodecId::bf16: return 2 * floats;
    case CodecId::int8: return 2 * groups + floats;
    case CodecId::int4:
      return 2 * groups + full * format::packed_size(quantiser_group, 2) +
             format::packed_size(tail, 2);
    case CodecId::ternary:
      return 2 * groups + full * format::packed_size(quantiser_group, 5) +
             format::packed_size(tail, 5);
    case CodecId::top_k: {
      const std::size_t short_chunk = floats % top_k_chunk;
      const std::size_t whole =
          floats / top_k_chunk *
          format::chunk_size(format::kept(codec.keep, top_k_chunk), top_k_chunk);
      return short_chunk == 0
                 ? whole
                 : whole + format::chunk_size(format::kept(codec.keep, short_chunk), short_chunk);
    }
  }
  return 0;
}

bool encode(Codec codec, std::span<const float> target, std::span<float> published,
            std::span<std::byte> out) {
  GOSSIPD_ASSERT(is_valid(codec) && codec.id != CodecId::mirror);
  GOSSIPD_ASSERT(target.size() == published.size() &&
                 out.size() == encoded_size(codec, target.size()));
  return kernels().encode(codec, target, published, out);
}

ApplyError apply(Codec codec, std::span<const std::byte> payload, std::span<float> received,
                 float magnitude_max) {
  if (!is_valid(codec)) return ApplyError::malformed;
  if (codec.id == CodecId::mirror || payload.size() != encoded_size(codec, received.size()))
    return ApplyError::wrong_size;
  return kernels().apply(codec, payload, received, magnitude_max);
}

}  // namespace gossipd
