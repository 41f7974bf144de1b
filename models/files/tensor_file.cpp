#include "models/files/tensor_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gossipd {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr std::size_t values_at_once = 65536;  // that are converted

template <typename T>
void cast(const std::byte* from, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof value);
    out[i] = value;
  }
}

}  // namespace

std::string text_of(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape)
    text += (text.size() == 1 ? "" : ", ") + std::to_string(extent);
  return text + "]";
}

void to_integers(TensorType type, const std::byte* from, std::span<std::int64_t> out) {
  switch (type) {
    case TensorType::i8: return cast<std::int8_t>(from, out);
    case TensorType::i16: return cast<std::int16_t>(from, out);
    case TensorType::i32: return cast<std::int32_t>(from, out);
    case TensorType::i64: return cast<std::int64_t>(from, out);
    default: return cast<std::uint8_t>(from, out);
  }
}

Result<SafetensorsHeader> read_safetensors_header(const DataFile& file) {
  const std::uint64_t bytes_max =
      std::min<std::uint64_t>(file.bytes(), safetensors_header_bytes_max + 8);
  std::vector<std::byte> start(static_cast<std::size_t>(std::min<std::uint64_t>(bytes_max, 8)));
  file.read_at(0, start);
  if (start.size() == 8) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i)
      length |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
    // The parser says what is wrong with a length that does not fit.
    start.resize(static_cast<std::size_t>(length <= bytes_max - 8 ? length + 8 : 8));
    file.read_at(0, start);
  }
  return parse_safetensors(start, file.bytes(), file.path());
}

void read_floats(const DataFile& file, const SafetensorsHeader& header, const TensorEntry& tensor,
                 std::span<float> out) {
  std::uint64_t at = header.data_offset + tensor.begin;
  GOSSIPD_ASSERT(out.size() * bytes_of(tensor.type) <= tensor.end - tensor.begin);
  if (tensor.type == TensorType::f32) return file.read_at(at, std::as_writable_bytes(out));
  Bytes raw(std::min(out.size(), values_at_once) * bytes_of(tensor.type));
  while (!out.empty()) {
    const std::span<float> part = out.first(std::min(out.size(), values_at_once));
    const std::span<std::byte> bytes = std::span(raw).first(part.size() * bytes_of(tensor.type));
    file.read_at(at, bytes);
    to_floats(tensor.type, bytes.data(), part);
    at += bytes.size();
    out = out.subspan(part.size());
  }
}

}  // namespace gossipd
