// tests/unit/data_test_support.h - loads a synthetic data set as a job would, and reads single
// samples; writes safetensors files.
#pragma once

#include "models/data/data_set.h"
#include "models/data/pixel_set.h"
#include "models/files/safetensors.h"
#include "models_test_support.h"

namespace gossipd::test {

inline DataSpec data_spec(const std::string& table) {
  TomlReader reader("[data]\n" + table, "test.toml");
  DataSpec data = parse_data_spec(reader.table("data"));
  const auto error = reader.finish();
  REQUIRE_MESSAGE(!error, (error ? error->text : ""));
  return data;
}

// All mistakes found in the table.
inline std::string refused_data_spec(const std::string& table) {
  TomlReader reader("[data]\n" + table, "test.toml");
  (void)parse_data_spec(reader.table("data"));
  const auto error = reader.finish();
  REQUIRE(error);
  return error->text;
}

inline DataSets load(const std::string& table, const TemporaryDirectory& directory,
                     std::uint64_t seed = 1) {
  auto sets = load_data(data_spec(table), {.directory = directory.string(), .seed = seed});
  REQUIRE_MESSAGE(sets, (sets ? "" : sets.error().text));
  return *sets;
}

inline Error load_error(const std::string& table, const TemporaryDirectory& directory) {
  const auto sets = load_data(data_spec(table), {.directory = directory.string()});
  REQUIRE(!sets);
  return sets.error();
}

// One sample, or room for several.
struct Room {
  std::vector<float> floats[2];
  std::vector<std::int64_t> integers[2];
  Batch batch;

  explicit Room(const DataSet& set, std::size_t samples = 1)
      : batch{make(set.input(), samples, 0), make(set.target(), samples, 1)} {}
  Batch::Values make(const SampleShape& shape, std::size_t samples, int i) {
    floats[i].clear();
    integers[i].clear();
    if (shape.element == SampleShape::Element::float32)
      return std::span(floats[i] = std::vector<float>(samples * shape.values(), -99));
    return std::span(integers[i] = std::vector<std::int64_t>(samples * shape.values(), -99));
  }
  [[nodiscard]] const std::vector<float>& inputs() const { return floats[0]; }
  [[nodiscard]] const std::vector<float>& float_targets() const { return floats[1]; }
  [[nodiscard]] const std::vector<std::int64_t>& tokens() const { return integers[0]; }
  [[nodiscard]] const std::vector<std::int64_t>& targets() const { return integers[1]; }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
};

inline std::unique_ptr<Room> sample(const DataSet& set, std::size_t index,
                                    const Variation* variation = nullptr) {
  auto room = std::make_unique<Room>(set);
  set.write(index, variation, room->batch, 0);
  return room;
}

struct Tensor {
  TensorEntry entry;
  std::string bytes;
};

template <typename T>
Tensor tensor(const std::string& name, TensorType type, std::vector<std::int64_t> shape,
              const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return {{name, type, std::move(shape)}, bytes};
}

inline std::string safetensors(const std::vector<Tensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const Tensor& each : tensors) entries.push_back(each.entry);
  std::string file = safetensors_header(entries, {});
  for (const Tensor& each : tensors) file += each.bytes;
  return file;
}

}  // namespace gossipd::test
