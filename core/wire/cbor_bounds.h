// core/wire/cbor_bounds.h - refuses CBOR that no message of ours can be, before a parser sees it.
//
// A parser that recurses for what its input nests dies of a small message: two letters repeated,
// strings of unknown length within each other, end it. So the bytes are walked first: no recursion,
// nothing is built, every byte is looked at once. What passes is one item and nothing behind it, of
// maps, arrays, text, integers, floats, booleans and null, each of a known length, within the
// bounds. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace gossipd {

inline constexpr std::size_t cbor_depth_max = 16;  // that any bounds may ask for

struct CborBounds {
  std::size_t depth_max = 0;       // maps and arrays within each other; at most cbor_depth_max
  std::size_t items_max = 0;       // of all kinds; a key of a map is one, its value another
  std::size_t text_bytes_max = 0;  // of one text
};

// What breaks the bounds, in words that follow "a message with"; nothing if all is well.
[[nodiscard]] std::optional<std::string> beyond(const CborBounds& bounds,
                                                std::span<const std::byte> message);

}  // namespace gossipd
