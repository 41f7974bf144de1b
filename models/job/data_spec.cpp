#include "models/job/data_spec.h"

#include <algorithm>
#include <utility>

#include "core/base/printable.h"
#include "models/job/data_names.h"

namespace gossipd {

namespace {

using Kind = DataSpec::Kind;

constexpr std::int64_t tokens_max = 65536;  // values of a uint16
constexpr std::int64_t length_max = 1 << 20;

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::idx: return "idx";
    case Kind::cifar10: return "cifar10";
    case Kind::cifar100: return "cifar100";
    case Kind::images: return "images";
    case Kind::tokens: return "tokens";
    case Kind::text: return "text";
    case Kind::safetensors: return "safetensors";
  }
  return "";
}

// Why a list of names is refused: the first that does not fit.
std::string no_file_name(const std::vector<std::string>& names, const char* of_what) {
  const auto wrong = std::find_if_not(names.begin(), names.end(), is_file_name);
  return "'" + printable(*wrong) + "' cannot be the name of " + of_what +
         " in the data directory; take 1 to 255 bytes of UTF-8 without slashes, quotes, "
         "backslashes and control characters, so rename it";
}

std::string parse_file_name(TomlTable& table, std::string_view key, const std::string& fallback) {
  const std::string name = table.get_string(key, fallback);
  if (is_file_name(name)) return name;
  table.refuse(
      key, no_file_name({name}, "a file") + " (the directory is each node's own choice, --data)");
  return fallback;
}

std::vector<std::string> parse_file_names(TomlTable& table, std::string_view key,
                                          std::vector<std::string> fallback) {
  std::vector<std::string> names = table.get_strings(key, std::move(fallback), data_files_max);
  if (!std::all_of(names.begin(), names.end(), is_file_name))
    table.refuse(
        key, no_file_name(names, "a file") + " (the directory is each node's own choice, --data)");
  return names;
}

void require_train_files(TomlTable& table, DataSpec& data) {
  data.train_files = parse_file_names(table, "train_files", {});
  data.test_files = parse_file_names(table, "test_files", {});
  if (!table.has("train_files") || data.train_files.empty())
    table.refuse(
        "train_files",
        "is missing; write train_files = [\"NAME\"], names of files in the data directory");
}

// Samples that are held out would be trained on, or some be seen twice as often as others. Names
// without slashes are one file only where they are equal.
void refuse_twice(TomlTable& table, std::vector<std::pair<std::string_view, std::string>> named) {
  std::ranges::stable_sort(named, {}, [](const auto& one) { return std::string_view(one.second); });
  const auto same = [](const auto& a, const auto& b) { return a.second == b.second; };
  const auto twice = std::adjacent_find(named.begin(), named.end(), same);
  if (twice == named.end()) return;
  const auto& [key, name] = *std::next(twice);
  const bool alone = twice->first == key;
  table.refuse(key, "names '" + name + "' " +
                        (alone ? "twice" : "as " + std::string(twice->first) + " does") +
                        "; name it once" +
                        (alone ? "" : ", or hold out a part of it with validation_fraction"));
}

void refuse_twice(TomlTable& table, const DataSpec& data) {
  std::vector<std::pair<std::string_view, std::string>> named;
  if (data.kind == Kind::idx) {
    named = {{"train_images", data.train_images}, {"train_labels", data.train_labels}};
    if (data.validation_fraction == 0)
      named.insert(named.end(),
                   {{"test_images", data.test_images}, {"test_labels", data.test_labels}});
    return refuse_twice(table, std::move(named));
  }
  const bool folders = data.kind == Kind::images;
  for (const std::string& name : data.train_files)
    named.emplace_back(folders ? "train_folder" : "train_files", name);
  for (const std::string& name : data.test_files)
    named.emplace_back(folders ? "test_folder" : "test_files", name);
  refuse_twice(table, std::move(named));
}

// Channels, rows, columns.
void parse_image_shape(TomlTable& table, DataSpec& data, std::vector<std::int64_t> fallback) {
  data.shape = table.get_integers("shape", fallback, 1, image_extent_max, 3);
  if (data.shape.size() == 3) return;
  table.refuse("shape", "must be channels, rows, columns; for example shape = [1, 28, 28]");
  data.shape = std::move(fallback);
}

void parse_normalisation(TomlTable& table, DataSpec& data, double magnitude_max) {
  const auto channels = static_cast<std::size_t>(data.shape.empty() ? 1 : data.shape[0]);
  const auto fits = [&](const std::vector<double>& values) {
    return values.size() == 1 || values.size() == channels;
  };
  data.mean =
      table.get_doubles("mean", data.mean, magnitude_max > 1 ? -magnitude_max : 0, magnitude_max);
  data.deviation =
      table.get_doubles("deviation", data.deviation,
                        magnitude_max > 1 ? 1 / magnitude_max : pixel_deviation_min, magnitude_max);
  const std::string way_out =
      "must be one number, or one for each of the " + std::to_string(channels) + " channels";
  if (!fits(data.mean)) table.refuse("mean", way_out);
  if (!fits(data.deviation)) table.refuse("deviation", way_out);
}

void parse_augmentation(TomlTable& table, DataSpec& data) {
  data.random_crop = table.get_integer("random_crop", 0, 0, 1024);
  data.random_flip = table.get_bool("random_flip", false);
}

void parse_idx_keys(TomlTable& table, DataSpec& data) {
  parse_image_shape(table, data, data.shape);
  data.classes = table.get_integer("classes", data.classes, 2, 256);
  data.train_images = parse_file_name(table, "train_images", data.train_images);
  data.train_labels = parse_file_name(table, "train_labels", data.train_labels);
  data.test_images = parse_file_name(table, "test_images", data.test_images);
  data.test_labels = parse_file_name(table, "test_labels", data.test_labels);
}

void parse_cifar_keys(TomlTable& table, DataSpec& data) {
  const bool ten = data.kind == Kind::cifar10;
  data.shape = {3, 32, 32};
  if (!ten) data.coarse_labels = table.get_choice("labels", "fine", {"fine", "coarse"}) == "coarse";
  data.classes = ten ? 10 : data.coarse_labels ? 20 : 100;
  std::vector<std::string> train = {"train.bin"};
  if (ten)
    train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
             "data_batch_5.bin"};
  data.train_files = parse_file_names(table, "train_files", std::move(train));
  data.test_files = parse_file_names(table, "test_files", {ten ? "test_batch.bin" : "test.bin"});
  if (data.train_files.empty()) table.refuse("train_files", "must name at least one file");
}

void parse_image_keys(TomlTable& table, DataSpec& data) {
  parse_image_shape(table, data, {3, 64, 64});
  if (data.shape[0] != 1 && data.shape[0] != 3)
    table.refuse("shape", "images have 1 channel (grey) or 3 (red, green, blue)");
  data.train_files = {parse_file_name(table, "train_folder", "train")};
  data.test_files = {parse_file_name(table, "test_folder", "test")};
  data.labels = table.get_enum(
      "labels", DataSpec::Labels::folder,
      {{"folder", DataSpec::Labels::folder}, {"file_name", DataSpec::Labels::file_name}});
  data.fit = table.get_enum("fit", DataSpec::Fit::crop,
                            {{"crop", DataSpec::Fit::crop}, {"stretch", DataSpec::Fit::stretch}});
  data.class_names = table.get_strings("class_names", {}, data_classes_max);
  if (!std::all_of(data.class_names.begin(), data.class_names.end(), is_file_name))
    table.refuse("class_names", no_file_name(data.class_names, "a class"));
  std::vector<std::string> sorted = data.class_names;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    table.refuse("class_names", "names a class twice");
  if (data.class_names.empty()) {
    data.classes = table.get_integer("classes", 0, 2, data_classes_max);
    if (!table.has("classes"))
      table.refuse("class_names",
                   "is missing; write class_names = [\"cat\", \"dog\"], or classes = N for N "
                   "folders in the order of their names");
    if (data.labels == DataSpec::Labels::file_name)
      table.refuse("class_names",
                   "is missing; file names are matched with it: class_names = [\"cat\", \"dog\"]");
    return;
  }
  data.classes = static_cast<std::int64_t>(data.class_names.size());
  if (data.classes < 2) table.refuse("class_names", "must name at least 2 classes");
  if (table.has("classes")) table.refuse("classes", "follows from class_names; take it out");
}

// Windows over a stream of tokens: the target is the input, one token later.
void parse_stream_keys(TomlTable& table, DataSpec& data) {
  data.shape = {table.get_integer("length", 256, 1, length_max)};
  data.target_shape = data.shape;
  data.classes = data.kind == Kind::text ? 256 : table.require_integer("vocabulary", 2, tokens_max);
  data.vocabulary = data.classes;
  require_train_files(table, data);
}

void parse_tensor_keys(TomlTable& table, DataSpec& data) {
  data.shape = table.get_integers("shape", {}, 1, sample_values_max, tensor_axes_max);
  if (data.shape.empty())
    table.refuse(
        "shape",
        "is missing; write the shape of one input, for example shape = [16] or [3, 32, 32]");
  data.target_shape = table.get_integers("target_shape", {}, 1, sample_values_max, tensor_axes_max);
  data.classes = table.get_integer("classes", 0, 0, tensor_integers_max);
  data.vocabulary = table.get_integer("vocabulary", 0, 0, tensor_integers_max);
  data.input_tensor = table.get_string("inputs", data.input_tensor);
  data.target_tensor = table.get_string("targets", data.target_tensor);
  for (const auto& [key, name] :
       {std::pair("inputs", &data.input_tensor), std::pair("targets", &data.target_tensor)})
    if (!is_tensor_name(*name))
      table.refuse(key, "must be a tensor's name, without spaces, quotes and slashes");
  for (const auto& [key, shape] :
       {std::pair("shape", &data.shape), std::pair("target_shape", &data.target_shape)}) {
    std::int64_t values = 1;
    for (const std::int64_t extent : *shape)
      values = extent > sample_values_max / values ? sample_values_max + 1 : values * extent;
    if (values > sample_values_max)
      table.refuse(key, "has more than " + std::to_string(sample_values_max) + " values");
  }
  require_train_files(table, data);
}

void write_names(const DataSpec& data, CanonicalText& out) {
  const bool folders = data.kind == Kind::images;
  if (folders) {
    out.line("train_folder", std::string_view(data.train_files.at(0)));
    if (data.validation_fraction == 0)
      out.line("test_folder", std::string_view(data.test_files.at(0)));
    return;
  }
  out.line("train_files", data.train_files);
  if (data.validation_fraction == 0) out.line("test_files", data.test_files);
}

// One number is written as such: the canonical text of the first jobs.
void write_number(std::string_view key, const std::vector<double>& values, CanonicalText& out) {
  if (values.size() == 1) return out.line(key, values[0]);
  out.line(key, values);
}

void write_idx(const DataSpec& data, CanonicalText& out) {
  out.line("shape", data.shape);
  out.line("classes", data.classes);
  write_number("mean", data.mean, out);
  write_number("deviation", data.deviation, out);
  out.line("train_images", std::string_view(data.train_images));
  out.line("train_labels", std::string_view(data.train_labels));
  out.line("test_images", std::string_view(data.test_images));
  out.line("test_labels", std::string_view(data.test_labels));
}

void write_images(const DataSpec& data, CanonicalText& out) {
  out.line("shape", data.shape);
  if (data.class_names.empty()) out.line("classes", data.classes);
  if (!data.class_names.empty()) out.line("class_names", data.class_names);
  out.line("labels",
           std::string_view(data.labels == DataSpec::Labels::folder ? "folder" : "file_name"));
  out.line("fit", std::string_view(data.fit == DataSpec::Fit::crop ? "crop" : "stretch"));
}

void write_tensors(const DataSpec& data, CanonicalText& out) {
  out.line("shape", data.shape);
  out.line("target_shape", data.target_shape);
  out.line("classes", data.classes);
  out.line("vocabulary", data.vocabulary);
  out.line("inputs", std::string_view(data.input_tensor));
  out.line("targets", std::string_view(data.target_tensor));
}

}  // namespace

bool is_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         printable(name) == name && name.find_first_of("/\\\"") == std::string::npos;
}

bool is_tensor_name(const std::string& name) {
  return is_file_name(name) && std::all_of(name.begin(), name.end(),
                                           [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

std::size_t SampleShape::values() const {
  std::size_t product = 1;
  for (const std::int64_t extent : shape) product *= static_cast<std::size_t>(extent);
  return product;
}

SampleShape DataSpec::input() const {
  return {shape, vocabulary > 0 ? SampleShape::Element::int64 : SampleShape::Element::float32};
}

SampleShape DataSpec::target() const {
  return {target_shape, classes > 0 ? SampleShape::Element::int64 : SampleShape::Element::float32};
}

DataSpec parse_data_spec(TomlTable table) {
  DataSpec data;
  data.kind = table.get_enum("kind", Kind::idx,
                             {{"idx", Kind::idx},
                              {"cifar10", Kind::cifar10},
                              {"cifar100", Kind::cifar100},
                              {"images", Kind::images},
                              {"tokens", Kind::tokens},
                              {"text", Kind::text},
                              {"safetensors", Kind::safetensors}});
  switch (data.kind) {
    case Kind::idx: parse_idx_keys(table, data); break;
    case Kind::cifar10:
    case Kind::cifar100: parse_cifar_keys(table, data); break;
    case Kind::images: parse_image_keys(table, data); break;
    case Kind::tokens:
    case Kind::text: parse_stream_keys(table, data); break;
    case Kind::safetensors: parse_tensor_keys(table, data); break;
  }
  if (data.vocabulary == 0)
    parse_normalisation(table, data, data.is_pixels() ? 1 : normalisation_max);
  if (data.is_pixels()) parse_augmentation(table, data);
  data.division =
      table.get_enum("division", DataSpec::Division::own,
                     {{"own", DataSpec::Division::own}, {"shared", DataSpec::Division::shared}});
  data.validation_fraction = table.get_double("validation_fraction", 0, 0, 0.9);
  if (data.validation_fraction > 0) {
    const std::string_view other = data.kind == Kind::images ? "test_folder" : "test_files";
    if (data.kind != Kind::idx && table.has(other))
      table.refuse(other, "and validation_fraction exclude each other; take one out");
    data.test_files.clear();
  }
  refuse_twice(table, data);
  return data;
}

void write_data_spec(const DataSpec& data, CanonicalText& out) {
  out.table("data");
  out.line("kind", name_of(data.kind));
  switch (data.kind) {
    case Kind::idx: write_idx(data, out); break;
    case Kind::cifar10: break;
    case Kind::cifar100:
      out.line("labels", std::string_view(data.coarse_labels ? "coarse" : "fine"));
      break;
    case Kind::images: write_images(data, out); break;
    case Kind::tokens: out.line("vocabulary", data.vocabulary); [[fallthrough]];
    case Kind::text: out.line("length", data.shape.at(0)); break;
    case Kind::safetensors: write_tensors(data, out); break;
  }
  if (data.kind != Kind::idx) {
    write_names(data, out);
    if (data.vocabulary == 0) {
      write_number("mean", data.mean, out);
      write_number("deviation", data.deviation, out);
    }
  }
  if (data.division == DataSpec::Division::shared) out.line("division", std::string_view("shared"));
  if (data.validation_fraction > 0) out.line("validation_fraction", data.validation_fraction);
  if (data.random_crop > 0) out.line("random_crop", data.random_crop);
  if (data.random_flip) out.line("random_flip", data.random_flip);
}

std::string files_wanted(const DataSpec& data) {
  const bool idx = data.kind == Kind::idx, folders = data.kind == Kind::images;
  std::vector<std::string> names = data.train_files;
  if (idx) names = {data.train_images, data.train_labels};
  if (data.validation_fraction == 0) {
    if (idx) names.insert(names.end(), {data.test_images, data.test_labels});
    names.insert(names.end(), data.test_files.begin(), data.test_files.end());
  }
  std::string text = folders ? "the folders " : "";
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return idx ? text + " (or the same with .gz)" : text;
}

}  // namespace gossipd
