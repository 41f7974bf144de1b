// models/files/safetensors.h - the safetensors file format: named tensors that every framework
// loads.
//
// Layout: u64 little-endian header length N, N bytes of JSON {"name": {"dtype", "shape",
// "data_offsets": [begin, end]}, "__metadata__": {text: text}}, padded with spaces so that the data
// starts at a multiple of 8, then the tensors' bytes without gaps. The reader takes a span and
// never looks past it, nor believes a length before checking it. Torch-free; any thread.
#pragma once

#include <map>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

inline constexpr std::uint64_t safetensors_header_bytes_max = 16ull << 20;
inline constexpr std::size_t safetensors_tensors_max = 131072;
inline constexpr std::size_t safetensors_rank_max = 8;

using Metadata = std::map<std::string, std::string>;

enum class TensorType : std::uint8_t { boolean, u8, i8, i16, f16, bf16, i32, f32, i64, f64 };
[[nodiscard]] std::string_view to_string(TensorType);  // as in the file: "F32"
[[nodiscard]] std::uint64_t bytes_of(TensorType);
[[nodiscard]] bool is_float(TensorType);
// Any of the types, from as many values in a file as `out` has; a double is rounded.
void to_floats(TensorType, const std::byte* from, std::span<float> out);

struct TensorEntry {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  // empty = scalar
  std::uint64_t begin = 0;          // bytes, from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by rising `begin`
  Metadata metadata;
  std::uint64_t data_offset = 0;  // bytes, from the start of the file
};

// For the writer: tensors in the order in which their bytes follow; `begin` and `end` are set here.
// The result starts with the length and ends where the data begins.
[[nodiscard]] std::string safetensors_header(std::vector<TensorEntry>& tensors,
                                             const Metadata& metadata);

// `file` may be the whole file or any prefix that includes the header; `file_bytes` is the whole
// file's size. Refuses gaps, overlaps, sizes that do not follow from type and shape, names that
// come twice. Code "bad-safetensors".
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                                          std::uint64_t file_bytes,
                                                          const std::string& origin);

}  // namespace gossipd
