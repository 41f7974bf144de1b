#include "models/data/tensor_look.h"

#include <algorithm>
#include <filesystem>

#include "models/files/tensor_file.h"
#include "models/job/data_names.h"

namespace gossipd {

namespace {

constexpr std::size_t read_bytes = std::size_t{1} << 20;

// The integers from 0 on of a tensor in all files seen so far.
struct Integers {
  bool all = true;  // of the training files there is no other
  std::int64_t largest = -1;
};

// Of one tensor.
struct Bounds {
  std::int64_t least = 0, largest = -1;
};

Error wrong(const std::string& path, const TensorEntry& tensor, const std::string& why) {
  return Error{"bad-data", path + ": tensor '" + tensor.name + "' " + why};
}

Bounds bounds_of(const DataFile& file, const SafetensorsHeader& header, const TensorEntry& tensor) {
  const std::uint64_t each = bytes_of(tensor.type);
  Bounds bounds;
  Bytes bytes(read_bytes);
  std::vector<std::int64_t> values;
  for (std::uint64_t at = tensor.begin; at < tensor.end;) {
    const std::size_t length =
        static_cast<std::size_t>(std::min<std::uint64_t>(read_bytes, tensor.end - at));
    const std::span<std::byte> piece = std::span(bytes).first(length);
    file.read_at(header.data_offset + at, piece);
    values.resize(length / each);
    to_integers(tensor.type, piece.data(), values);
    const auto [least, most] = std::ranges::minmax(values);
    bounds.least = std::min(bounds.least, least);
    bounds.largest = std::max(bounds.largest, most);
    at += length;
  }
  return bounds;
}

// Inputs and targets by name; of two others the larger one is the inputs.
std::optional<Error> choose_tensors(const std::string& path, const SafetensorsHeader& header,
                                    const TensorEntry*& inputs, const TensorEntry*& targets) {
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.name == "inputs") inputs = &tensor;
    if (tensor.name == "targets") targets = &tensor;
  }
  if ((inputs == nullptr || targets == nullptr) && header.tensors.size() == 2) {
    inputs = &header.tensors[0], targets = &header.tensors[1];
    if (inputs->end - inputs->begin < targets->end - targets->begin) std::swap(inputs, targets);
  }
  if (inputs == nullptr || targets == nullptr || inputs->shape.empty() || targets->shape.empty())
    return bad_data(path,
                    "has no tensors 'inputs' and 'targets' with samples along the first "
                    "axis; write it with safetensors.torch.save_file({\"inputs\": x, "
                    "\"targets\": y}, NAME)");
  return std::nullopt;
}

// What the [data] table could not say of a tensor.
std::optional<Error> check_tensor(const std::string& path, const TensorEntry& tensor) {
  if (!is_tensor_name(tensor.name))
    return wrong(path, tensor,
                 "has a name that cannot stand in a job; write the file again with a name of 1 to "
                 "255 letters, digits and signs, without spaces, quotes and slashes");
  const std::string shaped = "has shape " + text_of(tensor.shape);
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end())
    return wrong(path, tensor,
                 shaped +
                     ", so there is nothing in it; write the file again with one sample or more, "
                     "and one value or more in each");
  if (tensor.shape.size() > tensor_axes_max + 1)
    return wrong(path, tensor,
                 shaped + ", and a job takes " + std::to_string(tensor_axes_max) +
                     " axes after the first; write the file again with fewer, in Python "
                     "x.reshape(len(x), -1)");
  const std::uint64_t values = (tensor.end - tensor.begin) / bytes_of(tensor.type);
  if (values / static_cast<std::uint64_t>(tensor.shape[0]) >
      static_cast<std::uint64_t>(sample_values_max))
    return wrong(path, tensor,
                 shaped + ", and a job takes " + std::to_string(sample_values_max) +
                     " values a sample; write the file again with smaller samples");
  return std::nullopt;
}

// Of one tensor of one file. `what` they are, and what to write where they are something else.
std::optional<Error> count_in(const DataFile& file, const SafetensorsHeader& header,
                              const TensorEntry& tensor, bool may_be, bool test,
                              const std::string& what, Integers& integers) {
  if (!integers.all) return std::nullopt;
  const std::optional<Bounds> bounds =
      may_be ? std::optional(bounds_of(file, header, tensor)) : std::nullopt;
  // As many a library marks what is to be ignored; quantities would go on below.
  if (bounds && bounds->least == -1 && !test && what == "classes")
    return wrong(file.path(), tensor,
                 "holds -1 beside integers from 0 on; leave out the samples that are to be ignored "
                 "and number what is counted from 0 on, or write floats where they are quantities");
  const auto largest = bounds && bounds->least >= 0 ? std::optional(bounds->largest) : std::nullopt;
  if (!largest && test)
    return wrong(file.path(), tensor,
                 "holds other numbers than integers from 0 on, which those of the training files "
                 "are; write both alike");
  integers.all = largest.has_value();
  integers.largest = std::max(integers.largest, largest.value_or(-1));
  if (!largest || *largest < tensor_integers_max) return std::nullopt;
  return wrong(file.path(), tensor,
               "holds " + std::to_string(*largest) + ", and a job takes " + what + " below " +
                   std::to_string(tensor_integers_max) +
                   "; number them from 0 on, or write floats where they are quantities");
}

struct Found {
  Integers inputs, targets;
  bool bytes = false;  // inputs of some file are
};

std::optional<Error> look_at_file(const std::string& path, bool test, DataSpec& spec,
                                  Found& found) {
  const auto file = DataFile::open(path);
  if (!file) return file.error();
  const auto header = read_safetensors_header(*file);
  if (!header)
    return Error{"bad-data",
                 header.error().text + "; write the file again with Python's safetensors"};
  const TensorEntry *inputs = nullptr, *targets = nullptr;
  if (auto error = choose_tensors(path, *header, inputs, targets)) return error;
  for (const TensorEntry* tensor : {inputs, targets})
    if (auto error = check_tensor(path, *tensor)) return error;
  if (inputs->shape.size() < 2)
    return wrong(path, *inputs,
                 "has shape " + text_of(inputs->shape) +
                     ": samples, but no axis of their values; write the file again with one, in "
                     "Python x.reshape(-1, 1)");
  if (spec.shape.empty()) {
    spec.input_tensor = inputs->name, spec.target_tensor = targets->name;
    spec.shape.assign(inputs->shape.begin() + 1, inputs->shape.end());
    spec.target_shape.assign(targets->shape.begin() + 1, targets->shape.end());
  }
  const bool bytes = inputs->type == TensorType::u8 || inputs->type == TensorType::boolean;
  found.bytes = found.bytes || bytes;
  if (auto error = count_in(*file, *header, *inputs, !bytes && !is_float(inputs->type), test,
                            "integers as inputs", found.inputs))
    return error;
  const bool column = targets->shape.size() == 1 && !is_float(targets->type);
  return count_in(*file, *header, *targets, column, test, "classes", found.targets);
}

}  // namespace

std::optional<Error> look_at_tensors(const std::string& directory, DataSpec& spec, bool& bytes) {
  const std::filesystem::path root(directory);
  Found found;
  spec.shape.clear();
  for (const bool test : {false, true})
    for (const std::string& name : test ? spec.test_files : spec.train_files)
      if (auto error = look_at_file((root / name).string(), test, spec, found)) return error;
  const auto above = [](const Integers& integers) {
    return integers.all ? std::max<std::int64_t>(2, integers.largest + 1) : 0;
  };
  spec.vocabulary = above(found.inputs);
  spec.classes = above(found.targets);
  bytes = found.bytes;
  return std::nullopt;
}

}  // namespace gossipd
