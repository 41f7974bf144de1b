#include "models/data/tensor_set.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "models/files/tensor_file.h"

namespace gossipd {

namespace {

constexpr std::size_t samples_max = 0xffffffff;
constexpr std::uint64_t check_bytes = 1 << 20;  // read at a time when a file is checked

const std::string written_by =
    "in Python: safetensors.torch.save_file({\"inputs\": x, \"targets\": y}, \"NAME\")";

const std::byte* read(const DataFile& file, std::uint64_t offset, std::uint64_t bytes,
                      std::vector<std::byte>& raw) {
  raw.resize(static_cast<std::size_t>(bytes));
  file.read_at(offset, raw);
  return raw.data();
}

// What differs is the word: "input" of the vocabulary, "target" of the classes.
void check_range(std::span<const std::int64_t> values, std::int64_t bound, const char* what,
                 const char* of) {
  for (const std::int64_t value : values)
    if (value < 0 || value >= bound)
      throw std::out_of_range(std::string(what) + " " + std::to_string(value) + " is not " +
                              (value < 0 ? "from 0 on and " : "") + "below the " + of + " of " +
                              std::to_string(bound));
}

void check_finite(std::span<const float> values, const char* what) {
  for (const float value : values)
    if (!std::isfinite(value))
      throw std::out_of_range(std::string(what) +
                              " holds NaN or infinity, or more than a float can");
}

void check_probabilities(std::span<const float> targets) {
  for (const float target : targets)
    if (target < 0 || target > 1)
      throw std::out_of_range("target " + std::to_string(target) +
                              " is not in [0, 1], as bce needs it; write 0 and 1, or choose mse "
                              "under [loss]");
}

// A class for each sample may be a column of its own.
bool is_shaped(const TensorEntry& tensor, const SampleShape& sample) {
  if (tensor.shape.empty() || tensor.shape[0] == 0) return false;
  std::vector<std::int64_t> shape(tensor.shape.begin() + 1, tensor.shape.end());
  const bool integer = sample.shape.empty() && sample.element == SampleShape::Element::int64;
  if (integer && shape == std::vector<std::int64_t>{1}) shape.clear();
  return shape == sample.shape;
}

}  // namespace

TensorSet::TensorSet(const DataSpec& spec) : DataSet(spec), spec_(spec) {}

Result<std::shared_ptr<const DataSet>> TensorSet::open(const DataSpec& spec,
                                                       const std::vector<std::string>& names,
                                                       const LoadOptions& options) {
  const std::string& directory = options.directory;
  std::shared_ptr<TensorSet> set(new TensorSet(spec));
  for (const std::string& name : names) {
    const auto path = find_data_file(directory, name);
    if (!path) return no_data(directory, "'" + name + "' is not", written_by);
    auto file = DataFile::open(*path);
    if (!file) return file.error();
    try {
      if (auto error = set->append(std::move(*file))) return *error;
      if (!options.check_values) continue;
      if (auto error = set->check(set->pairs_.size() - 1)) return *error;
    } catch (const DataError& error) {
      return bad_data(path->string(), error);
    }
  }
  return std::shared_ptr<const DataSet>(std::move(set));
}

std::optional<Error> TensorSet::append(DataFile file) {
  const std::string path = file.path();
  const auto header = read_safetensors_header(file);
  if (!header)
    return Error{"bad-data", header.error().text +
                                 "; write the file again with Python's safetensors, or point "
                                 "--data at another directory"};
  std::size_t rows[2] = {0, 0};
  Column columns[2];
  const std::string names[2] = {spec_.input_tensor, spec_.target_tensor};
  const SampleShape shapes[2] = {input(), target()};
  for (int i = 0; i < 2; ++i) {
    const auto found = std::ranges::find(header->tensors, names[i], &TensorEntry::name);
    if (found == header->tensors.end())
      return bad_data(path, "has no tensor '" + names[i] + "'; name it in the job's [data] (" +
                                (i == 0 ? "inputs" : "targets") + "), or write it, " + written_by);
    if (!is_shaped(*found, shapes[i]))
      return bad_data(path, "tensor '" + names[i] + "' has shape " + text_of(found->shape) +
                                " but the job's samples are " + text_of(shapes[i].shape) +
                                " each, at least one along the first axis");
    if (shapes[i].element == SampleShape::Element::int64 && is_float(found->type))
      return bad_data(path, "tensor '" + names[i] + "' holds " +
                                std::string(to_string(found->type)) +
                                " but the job wants integers");
    rows[i] = static_cast<std::size_t>(found->shape[0]);
    columns[i] = {found->type, header->data_offset + found->begin,
                  (found->end - found->begin) / rows[i]};
  }
  if (rows[0] != rows[1])
    return wrong_data(path, "has " + std::to_string(rows[0]) + " inputs but " +
                                std::to_string(rows[1]) + " targets");
  if (rows[0] > samples_max - count()) return bad_data(path, "there are more than 2^32 samples");
  pairs_.push_back({std::move(file), columns[0], columns[1]});
  begins_.push_back(begins_.back() + rows[0]);
  return std::nullopt;
}

std::optional<Error> TensorSet::check(std::size_t pair) const {
  std::vector<float> floats[2];
  std::vector<std::int64_t> integers[2];
  const auto room = [&](const SampleShape& shape, int i) -> Batch::Values {
    if (shape.element == SampleShape::Element::float32)
      return std::span(floats[i] = std::vector<float>(shape.values()));
    return std::span(integers[i] = std::vector<std::int64_t>(shape.values()));
  };
  const Batch batch{room(input(), 0), room(target(), 1)};
  const auto& [file, inputs, targets] = pairs_[pair];
  const std::uint64_t rows = begins_[pair + 1] - begins_[pair];
  const std::uint64_t piece =
      std::max<std::uint64_t>(1, check_bytes / std::max(inputs.row_bytes, targets.row_bytes));
  std::vector<std::byte> raw[2];
  for (std::uint64_t row = 0; row < rows; ++row) {
    if (row % piece == 0) {
      const std::uint64_t count = std::min(piece, rows - row);
      read(file, inputs.offset + row * inputs.row_bytes, count * inputs.row_bytes, raw[0]);
      read(file, targets.offset + row * targets.row_bytes, count * targets.row_bytes, raw[1]);
    }
    try {
      write_inputs(inputs, &raw[0][row % piece * inputs.row_bytes], batch, 0);
      write_targets(targets, &raw[1][row % piece * targets.row_bytes], batch, 0);
      check_finite(floats[0], "input");
      check_finite(floats[1], "target");
      if (spec_.probabilities) check_probabilities(floats[1]);
    } catch (const std::out_of_range& error) {
      return wrong_data(file.path(), "sample " + std::to_string(row) + ": " + error.what());
    }
  }
  return std::nullopt;
}

void TensorSet::write(std::size_t index, const Variation*, const Batch& batch,
                      std::size_t at) const {
  const auto pair = static_cast<std::size_t>(
                        std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin()) -
                    1;
  const auto& [file, inputs, targets] = pairs_[pair];
  const std::uint64_t row = index - begins_[pair];
  static thread_local std::vector<std::byte> raw;
  write_inputs(inputs, read(file, inputs.offset + row * inputs.row_bytes, inputs.row_bytes, raw),
               batch, at);
  write_targets(targets,
                read(file, targets.offset + row * targets.row_bytes, targets.row_bytes, raw), batch,
                at);
}

void TensorSet::write_inputs(const Column& column, const std::byte* raw, const Batch& batch,
                             std::size_t at) const {
  const std::size_t values = input().values();
  if (spec_.vocabulary > 0) {
    const std::span out = place<std::int64_t>(batch.inputs, at, values);
    to_integers(column.type, raw, out);
    return check_range(out, spec_.vocabulary, "input", "vocabulary");
  }
  const std::span out = place<float>(batch.inputs, at, values);
  to_floats(column.type, raw, out);
  const double scale = column.type == TensorType::u8 ? 255.0 : 1.0;
  const std::size_t channels = std::max(spec_.mean.size(), spec_.deviation.size());
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = spec_.mean[c % spec_.mean.size()],
                 deviation = spec_.deviation[c % spec_.deviation.size()];
    if (mean == 0 && deviation == 1 && scale == 1) continue;
    for (float& value : out.subspan(c * (values / channels), values / channels))
      value = static_cast<float>((static_cast<double>(value) / scale - mean) / deviation);
  }
}

void TensorSet::write_targets(const Column& column, const std::byte* raw, const Batch& batch,
                              std::size_t at) const {
  const std::size_t values = target().values();
  if (spec_.classes == 0)
    return to_floats(column.type, raw, place<float>(batch.targets, at, values));
  const std::span out = place<std::int64_t>(batch.targets, at, values);
  to_integers(column.type, raw, out);
  check_range(out, spec_.classes, "target", "number of classes");
}

}  // namespace gossipd
