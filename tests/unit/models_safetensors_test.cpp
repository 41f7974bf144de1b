// The header of a safetensors file: written as documented, and read from anybody.
#include "models/files/safetensors.h"

#include "models_test_support.h"

using namespace gossipd;
using test::bytes_of;

namespace {

std::string with_length(const std::string& json, const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return out + json + data;
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors(bytes_of(file), file.size(), "f");
}

}  // namespace

// Golden bytes: what Python's safetensors writes for {"a": f32[2], "b": u8[]} with metadata, apart
// from the padding.
TEST_CASE("A safetensors header is the documented bytes") {
  std::vector<TensorEntry> tensors{{"a", TensorType::f32, {2}}, {"b", TensorType::u8, {}}};
  const std::string json =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  CHECK(safetensors_header(tensors, {{"k", "v"}}) == with_length(padded));
}

TEST_CASE("A safetensors header reads back as it was written") {
  std::vector<TensorEntry> tensors;
  std::uint64_t bytes = 0;
  for (const TensorType type :
       {TensorType::boolean, TensorType::f16, TensorType::i64, TensorType::f64}) {
    tensors.push_back({"t." + std::string(to_string(type)), type, {3, 0, 2}});
    tensors.push_back({"u." + std::string(to_string(type)), type, {3, 1}});
    bytes += 3 * bytes_of(type);
  }
  const std::string file =
      safetensors_header(tensors, {{"k", "v \"q\""}}) + std::string(bytes, 'x');
  const auto header = parse(file);
  REQUIRE_MESSAGE(header, (header ? "" : header.error().text));
  CHECK(header->tensors.size() == tensors.size());
  CHECK(header->metadata.at("k") == "v \"q\"");
  CHECK(header->data_offset % 8 == 0);
}

TEST_CASE("Hostile safetensors headers are refused") {
  const std::string one = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::string data(8, 'x');
  REQUIRE(parse(with_length("{" + one + "}", data)));
  const std::vector<std::pair<const char*, std::string>> hostile{
      {"empty", ""},
      {"shorter than the length", "1234567"},
      {"length beyond everything", std::string(8, '\xff') + "{}"},
      {"length beyond the file", with_length("{" + one + "}", data).substr(0, 20)},
      {"not JSON", with_length("{\"a\":", data)},
      {"not an object", with_length("[]")},
      {"leading space", with_length(" {}")},
      {"deep nesting",
       with_length("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}")},
      {"a name twice", with_length("{" + one + "," + one + "}", data)},
      {"a field twice",
       with_length(R"({"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})",
                   data)},
      {"unknown dtype", with_length(tensor("\"F31\"", "[2]", "[0,8]"), data)},
      {"dtype of another size", with_length(tensor("\"F64\"", "[2]", "[0,8]"), data)},
      {"dtype that is a number", with_length(tensor("5", "[2]", "[0,8]"), data)},
      {"negative extent", with_length(tensor("\"F32\"", "[-2]", "[0,8]"), data)},
      {"fractional extent", with_length(tensor("\"F32\"", "[2.0]", "[0,8]"), data)},
      {"extents that overflow",
       with_length(tensor("\"F32\"", "[4294967296,4294967296]", "[0,8]"), data)},
      {"extents that overflow to the size",
       with_length(tensor("\"F32\"", "[2,4611686018427387905]", "[0,8]"), data)},
      {"too many dimensions", with_length(tensor("\"F32\"", "[2,1,1,1,1,1,1,1,1]", "[0,8]"), data)},
      {"offsets backwards", with_length(tensor("\"F32\"", "[2]", "[8,0]"), data)},
      {"offsets beyond the file", with_length(tensor("\"F32\"", "[2]", "[800,808]"), data)},
      {"three offsets", with_length(tensor("\"F32\"", "[2]", "[0,8,8]"), data)},
      {"a gap at the start", with_length(tensor("\"F32\"", "[1]", "[4,8]"), data)},
      {"overlap",
       with_length("{" + one + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data)},
      {"bytes that nobody names", with_length("{" + one + "}", data + "x")},
      {"data cut off", with_length("{" + one + "}", "1234567")},
      {"metadata that is a list", with_length("{\"__metadata__\":[]," + one + "}", data)},
      {"metadata that is a number", with_length("{\"__metadata__\":{\"k\":1}," + one + "}", data)},
  };
  for (const auto& [what, file] : hostile) {
    const auto header = parse(file);
    CHECK_MESSAGE(!header, what);
  }
}
