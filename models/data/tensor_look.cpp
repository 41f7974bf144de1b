#include "models/data/tensor_look.h"

#include <algorithm>
#include <filesystem>

#include "models/files/tensor_file.h"
#include "models/job/data_names.h"

namespace gossipd {

namespace {

constexpr std::size_t read_bytes = std::size_t{1} << 20;

// Of images that are so in both directions.
constexpr std::int64_t pixels_least = 8;
constexpr std::int64_t aspect_most = 4;

// The integers from 0 on of a tensor in all files seen so far.
struct Integers {
  bool all = true;  // of the training files there is no other
  std::int64_t largest = -1;
  std::vector<bool> seen;  // of classes
  [[nodiscard]] std::int64_t distinct() const { return std::ranges::count(seen, true); }
};

// Of one tensor.
struct Bounds {
  std::int64_t least = 0, largest = -1;
};

Error wrong(const std::string& path, const TensorEntry& tensor, const std::string& why) {
  return Error{"bad-data", path + ": tensor '" + tensor.name + "' " + why};
}

// `seen`: nullptr, or where to mark those that a job takes as classes.
Bounds bounds_of(const DataFile& file, const SafetensorsHeader& header, const TensorEntry& tensor,
                 std::vector<bool>* seen) {
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
    if (seen == nullptr || least < 0 || most >= tensor_integers_max) continue;
    seen->resize(std::max(seen->size(), static_cast<std::size_t>(most) + 1));
    for (const std::int64_t value : values) (*seen)[static_cast<std::size_t>(value)] = true;
  }
  return bounds;
}

// For a message, a few of them.
std::string names_of(const SafetensorsHeader& header) {
  constexpr std::size_t most = 6;
  std::string names;
  for (std::size_t i = 0; i < std::min(header.tensors.size(), most); ++i)
    names += (i > 0 ? ", '" : "'") + header.tensors[i].name + "'";
  if (header.tensors.size() > most)
    names += " and " + std::to_string(header.tensors.size() - most) + " others";
  return names.empty() ? "none at all" : names;
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
    return Error{"bad-data", path +
                                 ": has no tensors 'inputs' and 'targets' with samples along the "
                                 "first axis, but " +
                                 names_of(header) +
                                 "; write it with safetensors.torch.save_file({\"inputs\": x, "
                                 "\"targets\": y}, NAME), or say in a job's [data] which of them "
                                 "are `inputs` and `targets`"};
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
  const bool classes = what == "classes";
  std::optional<Bounds> bounds;
  if (may_be) bounds = bounds_of(file, header, tensor, classes ? &integers.seen : nullptr);
  // As many a library marks what is to be ignored; quantities would go on below.
  if (bounds && bounds->least == -1 && !test && classes)
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
  // [N, 1] is the column of a table, as pandas and scikit-learn have it.
  const bool column =
      targets->shape.size() == 1 || (targets->shape.size() == 2 && targets->shape[1] == 1);
  return count_in(*file, *header, *targets, column && !is_float(targets->type), test, "classes",
                  found.targets);
}

std::optional<Error> check_classes(const std::string& directory, const DataSpec& spec,
                                   const Integers& targets) {
  if (!targets.all || targets.distinct() != 1) return std::nullopt;
  const std::size_t others = spec.train_files.size() - 1;
  return Error{"bad-data",
               (std::filesystem::path(directory) / spec.train_files[0]).string() +
                   (others > 0 ? " and " + std::to_string(others) + " more" : "") + ": tensor '" +
                   spec.target_tensor + "' holds one class only, " +
                   std::to_string(targets.largest) +
                   "; a model learns to tell two or more apart: write samples of the others too, "
                   "or floats where they are quantities"};
}

bool has_channels_last(const DataSpec& spec) {
  if (spec.shape.size() != 3 || spec.vocabulary > 0) return false;
  const auto is_colour = [](std::int64_t extent) { return extent == 1 || extent == 3; };
  const auto [least, most] = std::minmax(spec.shape[0], spec.shape[1]);
  return is_colour(spec.shape[2]) && least >= pixels_least && most <= aspect_most * least;
}

std::vector<std::string> notes_on(const DataSpec& spec, const Integers& targets) {
  std::vector<std::string> notes;
  if (has_channels_last(spec))
    notes.push_back("inputs of " + text_of(spec.shape) +
                    " seem to be images of rows x columns x channels, and a job takes channels x "
                    "rows x columns: write the files again, in Python with x.permute(0, 3, 1, "
                    "2).contiguous() (NumPy: x.transpose(0, 3, 1, 2).copy()); then a model of kind "
                    "\"cnn\" fits as well");
  const std::int64_t distinct = targets.distinct();
  if (spec.classes > 0 && 2 * distinct < spec.classes)
    notes.push_back("of " + std::to_string(spec.classes) + " classes, as the largest is " +
                    std::to_string(spec.classes - 1) + ", only " + std::to_string(distinct) +
                    " have a sample, and the model has outputs for all: number them 0 to " +
                    std::to_string(distinct - 1) +
                    ", alike in all files, in Python with numpy.unique(y, "
                    "return_inverse=True)[1]");
  return notes;
}

}  // namespace

std::optional<Error> look_at_tensors(const std::string& directory, DataSpec& spec,
                                     TensorLook& look) {
  const std::filesystem::path root(directory);
  Found found;
  spec.shape.clear();
  for (const bool test : {false, true}) {
    for (const std::string& name : test ? spec.test_files : spec.train_files)
      if (auto error = look_at_file((root / name).string(), test, spec, found)) return error;
    if (test) continue;
    if (auto error = check_classes(directory, spec, found.targets)) return error;
  }
  const auto above = [](const Integers& integers) {
    return integers.all ? std::max<std::int64_t>(2, integers.largest + 1) : 0;
  };
  spec.vocabulary = above(found.inputs);
  spec.classes = above(found.targets);
  if (spec.classes > 0) spec.target_shape.clear();
  // Bytes in a row are pixels.
  look.alike = (found.bytes && spec.shape.size() == 1) || has_channels_last(spec);
  look.notes = notes_on(spec, found.targets);
  return std::nullopt;
}

}  // namespace gossipd
