#include "models/files/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace gossipd {

namespace {

using nlohmann::json;

struct TypeRow {
  TensorType type;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<TypeRow, 10> type_rows{{{TensorType::boolean, "BOOL", 1},
                                             {TensorType::u8, "U8", 1},
                                             {TensorType::i8, "I8", 1},
                                             {TensorType::i16, "I16", 2},
                                             {TensorType::f16, "F16", 2},
                                             {TensorType::bf16, "BF16", 2},
                                             {TensorType::i32, "I32", 4},
                                             {TensorType::f32, "F32", 4},
                                             {TensorType::i64, "I64", 8},
                                             {TensorType::f64, "F64", 8}}};

constexpr std::string_view metadata_key = "__metadata__";
constexpr int header_depth_max = 4;  // { tensor { data_offsets [ … ] } }

// Parses with a bound on depth and refuses keys that come twice (a JSON parser would keep the
// last).
Result<json> parse_header(std::string_view text, const std::string& origin) {
  bool too_deep = false;
  bool twice = false;
  std::vector<std::set<std::string, std::less<>>> keys(header_depth_max + 2);
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    too_deep = too_deep || depth > header_depth_max;
    if (too_deep) return false;
    const auto level = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start) keys[level + 1].clear();
    if (event == json::parse_event_t::key)
      twice = twice || !keys[level].insert(parsed.get<std::string>()).second;
    return true;
  };
  json header = json::parse(text, watch, false);
  if (too_deep) return Error{"bad-safetensors", origin + ": the header is nested too deeply"};
  if (header.is_discarded() || !header.is_object())
    return Error{"bad-safetensors", origin + ": the header is not a JSON object"};
  if (twice) return Error{"bad-safetensors", origin + ": the header names something twice"};
  return header;
}

bool read_unsigned(const json& value, std::uint64_t& out) {
  if (!value.is_number_unsigned()) return false;
  out = value.get<std::uint64_t>();
  return true;
}

Result<TensorEntry> parse_entry(const std::string& name, const json& value,
                                const std::string& origin) {
  const auto refuse = [&](const std::string& why) {
    return Error{"bad-safetensors", origin + ": tensor '" + name.substr(0, 100) + "' " + why};
  };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    return refuse("lacks dtype, shape or data_offsets");
  TensorEntry entry;
  entry.name = name;
  const json& type = value["dtype"];
  const auto row = std::find_if(type_rows.begin(), type_rows.end(), [&](const TypeRow& r) {
    return type.is_string() && type.get_ref<const std::string&>() == r.name;
  });
  if (row == type_rows.end()) return refuse("has an unknown dtype");
  entry.type = row->type;
  const json& shape = value["shape"];
  if (!shape.is_array() || shape.size() > safetensors_rank_max)
    return refuse("has an impossible shape");
  std::uint64_t bytes = row->bytes;
  for (const json& extent_value : shape) {
    std::uint64_t extent = 0;
    if (!read_unsigned(extent_value, extent) ||
        extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        (extent > 0 && bytes > std::numeric_limits<std::uint64_t>::max() / extent))
      return refuse("has an impossible shape");
    bytes *= extent;
    entry.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !read_unsigned(offsets[0], entry.begin) ||
      !read_unsigned(offsets[1], entry.end) || entry.end < entry.begin)
    return refuse("has impossible data_offsets");
  if (entry.end - entry.begin != bytes)
    return refuse("has " + std::to_string(entry.end - entry.begin) +
                  " bytes of data, but its dtype and shape need " + std::to_string(bytes));
  return entry;
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// IEEE 754 binary16 is exact in binary32.
float from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16,
                      exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0)
    return std::bit_cast<float>(
        sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  return std::bit_cast<float>(sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 |
                              fraction << 13);
}

template <typename T, typename Convert>
void each(const std::byte* from, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = convert(load<T>(from + i * sizeof(T)));
}

template <typename T>
void cast(const std::byte* from, std::span<float> out) {
  each<T>(from, out, [](T value) { return static_cast<float>(value); });
}

}  // namespace

void to_floats(TensorType type, const std::byte* from, std::span<float> out) {
  switch (type) {
    case TensorType::boolean:
    case TensorType::u8: return cast<std::uint8_t>(from, out);
    case TensorType::i8: return cast<std::int8_t>(from, out);
    case TensorType::i16: return cast<std::int16_t>(from, out);
    case TensorType::i32: return cast<std::int32_t>(from, out);
    case TensorType::i64: return cast<std::int64_t>(from, out);
    case TensorType::f16: return each<std::uint16_t>(from, out, from_half);
    case TensorType::bf16:
      return each<std::uint16_t>(
          from, out, [](std::uint16_t b) { return std::bit_cast<float>(std::uint32_t{b} << 16); });
    case TensorType::f32: return cast<float>(from, out);
    case TensorType::f64: return cast<double>(from, out);
  }
}

std::string_view to_string(TensorType type) {
  return type_rows[static_cast<std::size_t>(type)].name;
}
std::uint64_t bytes_of(TensorType type) { return type_rows[static_cast<std::size_t>(type)].bytes; }

bool is_float(TensorType type) {
  return type == TensorType::f16 || type == TensorType::bf16 || type == TensorType::f32 ||
         type == TensorType::f64;
}

std::string safetensors_header(std::vector<TensorEntry>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(metadata_key)] = metadata;
  std::uint64_t at = 0;
  for (TensorEntry& tensor : tensors) {
    std::uint64_t bytes = bytes_of(tensor.type);
    for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::uint64_t>(extent);
    tensor.begin = at;
    tensor.end = at += bytes;
    header[tensor.name] = {{"dtype", to_string(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out;
  for (int i = 0; i < 8; ++i)
    out += static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xff);
  return out + text;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::uint64_t file_bytes, const std::string& origin) {
  const auto refuse = [&](const std::string& why) {
    return Error{"bad-safetensors", origin + ": " + why};
  };
  if (file.size() < 8 || file_bytes < 8)
    return refuse("is too short for a safetensors file; copy or write it again");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > safetensors_header_bytes_max)
    return refuse("is no safetensors file (its first bytes name a header of " +
                  std::to_string(length) + " bytes; at most " +
                  std::to_string(safetensors_header_bytes_max) + " are read)");
  if (length > file.size() - 8 || length > file_bytes - 8)
    return refuse("is cut off inside its header");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (!text.starts_with('{')) return refuse("has a header that is not a JSON object");
  auto header = parse_header(text, origin);
  if (!header) return header.error();
  if (header->size() > safetensors_tensors_max + 1)
    return refuse("has more than " + std::to_string(safetensors_tensors_max) + " tensors");
  SafetensorsHeader out;
  out.data_offset = 8 + length;
  for (const auto& [name, value] : header->items()) {
    if (name == metadata_key) {
      if (!value.is_object()) return refuse("has metadata that is not an object");
      for (const auto& [key, word] : value.items()) {
        if (!word.is_string()) return refuse("has metadata that is not text");
        out.metadata.emplace(key, word.get<std::string>());
      }
      continue;
    }
    auto entry = parse_entry(name, value, origin);
    if (!entry) return entry.error();
    out.tensors.push_back(std::move(*entry));
  }
  std::sort(out.tensors.begin(), out.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const TensorEntry& tensor : out.tensors) {
    if (tensor.begin != at)
      return refuse("has a gap or an overlap before tensor '" + tensor.name.substr(0, 100) + "'");
    at = tensor.end;
  }
  if (at != file_bytes - out.data_offset)
    return refuse("has " + std::to_string(file_bytes - out.data_offset) +
                  " bytes of data, but its header names " + std::to_string(at));
  return out;
}

}  // namespace gossipd
