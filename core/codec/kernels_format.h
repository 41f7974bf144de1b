// core/codec/kernels_format.h - the sizes and bit patterns of FORMAT.md, shared by codec.cpp and
// the loops of every instruction set.
//
// Only constants and constexpr functions of plain integers: this header is compiled into objects
// that use AVX, and anything in it that the linker could merge must hold no vector code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gossipd::format {

inline constexpr std::uint32_t magnitude_mask = 0x7fffffffu;  // an fp32 without its sign
// magnitudes from here on are infinity and NaN
inline constexpr std::uint32_t infinity_bits = 0x7f800000u;
inline constexpr std::uint32_t value_max_bits = 0x71000000u;  // 2^99

// A scale is a bf16 of sign 0: either 0 or within [2^-100, 2^100], so that times any code it is
// exact, normal and finite in fp32.
inline constexpr std::uint32_t scale_min = 0x0d80u;
inline constexpr std::uint32_t scale_max = 0x7180u;

inline constexpr int int8_level_max = 127;
inline constexpr int int4_level_max = 7;

// Bytes of `floats` codes, `per_byte` to a byte.
[[nodiscard]] constexpr std::size_t packed_size(std::size_t floats, std::size_t per_byte) {
  return (floats + per_byte - 1) / per_byte;
}

// Entries kept of a chunk of `floats` floats (1 … 1024) when a full one keeps `keep`.
[[nodiscard]] constexpr std::size_t kept(std::size_t keep, std::size_t floats) {
  const std::size_t proportional = (keep * floats + 512) / 1024;
  return proportional == 0 ? 1 : proportional;
}

// Elias-Fano code of `entries` ascending indices below `floats`: so many low bits of each as they
// are, the rest in unary.
[[nodiscard]] constexpr std::size_t low_bits(std::size_t entries, std::size_t floats) {
  return static_cast<std::size_t>(63 - __builtin_clzll(floats / entries));
}
[[nodiscard]] constexpr std::size_t high_bits(std::size_t entries, std::size_t floats) {
  return entries + ((floats - 1) >> low_bits(entries, floats));
}

inline constexpr std::size_t value_bits = 2;  // of an entry: sign and which magnitude

// Two bf16 magnitudes, then the bits of the entries.
[[nodiscard]] constexpr std::size_t chunk_size(std::size_t entries, std::size_t floats) {
  return 4 +
         (high_bits(entries, floats) + (value_bits + low_bits(entries, floats)) * entries + 7) / 8;
}

}  // namespace gossipd::format
