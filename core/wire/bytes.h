// core/wire/bytes.h - little-endian reading and writing of fixed-size fields.
//
// The reader never reads past its span: after the first short read it is !ok() and yields zeros.
#pragma once

#include <bit>
#include <cstring>
#include <type_traits>

#include "core/base/types.h"

namespace gossipd {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void put(T value) { std::memcpy(grow(sizeof value).data(), &value, sizeof value); }
  // Appends `count` bytes and returns them, to be filled; valid until the next call.
  std::span<std::byte> grow(std::size_t count) {
    const std::size_t at = out_.size();
    out_.resize(at + count);
    return std::span(out_).subspan(at, count);
  }

 private:
  Bytes& out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}
  template <typename T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value{};
    const auto bytes = take(sizeof value);
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    if (count > in_.size()) {
      ok_ = false;
      in_ = {};
      return {};
    }
    const auto bytes = in_.first(count);
    in_ = in_.subspan(count);
    return bytes;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool empty() const { return in_.empty(); }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace gossipd
