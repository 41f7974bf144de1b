#include "models/data/data_look.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "core/base/figures.h"
#include "models/data/data_set.h"
#include "models/data/idx.h"
#include "models/data/image_files.h"
#include "models/data/target_scale.h"
#include "models/data/tensor_look.h"
#include "models/data/unknown_data.h"
#include "models/files/data_file.h"
#include "models/job/data_names.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;
using Kind = DataSpec::Kind;
using Look = std::optional<Result<DataLook>>;  // nothing: the directory holds no such files

constexpr std::size_t moments_samples = 512;                  // looked at, and more of tensors:
constexpr std::size_t moments_values = std::size_t{1} << 22;  // those with so many values
// With a mean and a deviation each: so many have room in a job, with as many digits as they take.
constexpr std::int64_t columns_max = 2048;
constexpr double held_out_fraction = 0.1;
// With quotes, so that a job has room for the rest; of longer names only the number is written.
constexpr std::size_t class_names_bytes_max = std::size_t{48} << 10;
constexpr std::int64_t length_wanted = 256;  // of a window of tokens
constexpr std::int64_t length_least = 16;
constexpr std::uint64_t windows_wanted = 64;
constexpr std::uint64_t tokens_least = 256;  // some windows to train on and one held out
constexpr std::size_t read_bytes = std::size_t{1} << 20;
// A deviation below this part of the mean is what rounding makes of one and the same value.
constexpr double constant_part = 1e-6;

std::vector<std::string> names_in(const fs::path& directory, bool folders) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator i(directory, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(".") &&
        (folders ? i->is_directory(ignored) : i->is_regular_file(ignored)))
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// By the word that it begins with, which no letter may follow: device.txt is no part "dev".
bool is_held_out(const std::string& name) {
  const auto is_letter = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
  };
  const std::string word(name.begin(), std::ranges::find_if_not(name, is_letter));
  for (const char* part : {"test", "tests", "testing", "testset", "val", "valid", "validation",
                           "valset", "dev", "devset"})
    if (word == part) return true;
  return false;
}

// Files with this ending, those for training and those to test with.
std::optional<Error> sort_files(const std::string& directory, const std::string& ending,
                                DataSpec& spec) {
  for (const std::string& name : names_in(directory, false)) {
    if (!name.ends_with(ending) || name.size() == ending.size()) continue;
    if (!is_file_name(name))
      return Error{"bad-data", (fs::path(directory) / name).string() +
                                   ": its name cannot stand in a job, which takes UTF-8 without "
                                   "quotes, backslashes and control characters; rename it"};
    (is_held_out(name) ? spec.test_files : spec.train_files).push_back(name);
  }
  for (const auto* files : {&spec.train_files, &spec.test_files})
    if (files->size() > data_files_max)
      return Error{"bad-data", (fs::path(directory) / ("*" + ending)).string() + ": are " +
                                   std::to_string(files->size()) + " files to " +
                                   (files == &spec.train_files ? "train on" : "test with") +
                                   ", and a job takes " + std::to_string(data_files_max) +
                                   "; join some"};
  if (spec.test_files.empty()) spec.validation_fraction = held_out_fraction;
  return std::nullopt;
}

// To four decimals, or as many as hold four digits of a small deviation; never to -0.
double rounded(double value, double deviation) {
  const int order = deviation > 0 ? static_cast<int>(std::floor(std::log10(deviation))) : 0;
  const double unit = std::pow(10.0, std::max(4, 3 - order));
  return std::round(value * unit) / unit + 0.0;
}

// Of all values of one channel, less the first: then large values with small differences keep them.
struct Moments {
  bool begun = false;
  double first = 0, sum = 0, squares = 0, count = 0;
  void add(double value) {
    if (!begun) first = value, begun = true;
    sum += value - first;
    squares += (value - first) * (value - first);
    ++count;
  }
  [[nodiscard]] double mean() const { return first + sum / count; }
  [[nodiscard]] double deviation() const {
    return std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count)));
  }
};

// How many means and deviations there are: one for each place along the first axis, where samples
// of one axis have the columns of a table; but one where tensors have `alike` values.
std::size_t channels_of(const DataSpec& spec, bool alike) {
  const std::int64_t first = spec.shape.at(0);
  return !spec.is_pixels() && (alike || first > columns_max) ? 1 : static_cast<std::size_t>(first);
}

std::vector<Moments> moments_of(const DataSet& set, std::size_t channels, std::size_t samples) {
  const std::size_t values = set.input().values(), targets = set.target().values();
  std::vector<Moments> moments(channels);
  std::vector<float> input(values), floats(targets);
  std::vector<std::int64_t> integers(targets);
  Batch batch{.inputs = std::span<float>(input), .targets = std::span<float>(floats)};
  if (set.classes() > 0) batch.targets = std::span<std::int64_t>(integers);
  const std::size_t looked = std::min(set.count(), samples);
  for (std::size_t i = 0; i < looked; ++i) {
    set.write(i * set.count() / looked, nullptr, batch, 0);
    for (std::size_t v = 0; v < values; ++v) moments[v / (values / channels)].add(input[v]);
  }
  return moments;
}

Error beyond_a_job(const DataSpec& spec, const std::string& directory, double mean,
                   double deviation, const std::string& where) {
  const std::string more = spec.train_files.size() > 1
                               ? " and " + std::to_string(spec.train_files.size() - 1) + " more"
                               : "";
  return Error{"bad-data", (fs::path(directory) / spec.train_files.at(0)).string() + more +
                               ": the inputs have a mean of " + six_digits(mean) +
                               " and a deviation of " + six_digits(deviation) + where +
                               ", and a job takes means up to " + six_digits(normalisation_max) +
                               " and deviations from " + six_digits(1 / normalisation_max) +
                               " to " + six_digits(normalisation_max) +
                               "; write the inputs times a factor, so that they are about 1"};
}

// The error: of numbers that a job does not take. `alike`: of TensorLook.
std::optional<Error> measure(const DataSet& set, const std::string& directory, bool alike,
                             DataLook& look) {
  DataSpec& spec = look.spec;
  const bool pixels = spec.is_pixels();
  const std::size_t of_values = pixels ? 0 : moments_values / set.input().values();
  const std::vector<Moments> channels =
      moments_of(set, channels_of(spec, alike), std::max(moments_samples, of_values));
  constexpr double smallest = 1 / normalisation_max;
  // Beside others that differ more, what differs less than a job can say is what rounding left.
  const bool any_differs = std::ranges::any_of(
      channels, [](const Moments& channel) { return channel.deviation() >= smallest; });
  spec.mean.clear(), spec.deviation.clear();
  for (std::size_t c = 0; c < channels.size(); ++c) {
    const double mean = channels[c].mean(), deviation = channels[c].deviation();
    const double least =
        pixels ? pixel_deviation_min
               : std::max(std::abs(mean) * constant_part, any_differs ? smallest : 0.0);
    const bool constant = deviation == 0 || deviation < least;
    if (std::abs(mean) > normalisation_max || deviation > normalisation_max ||
        (!constant && deviation < smallest))
      return beyond_a_job(
          spec, directory, mean, deviation,
          channels.size() == 1 ? "" : " in column " + std::to_string(c) + ", from 0");
    look.constant_channels += constant ? 1 : 0;
    spec.mean.push_back(rounded(mean, deviation));
    spec.deviation.push_back(constant ? 1.0 : rounded(deviation, deviation));
  }
  return std::nullopt;
}

// The files are read as a job would read them, so that what is damaged shows now.
Result<DataLook> loaded(const std::string& directory, DataSpec spec, std::string words,
                        TensorLook tensors = {}) {
  LoadOptions options;
  options.directory = directory;
  auto sets = load_data(spec, options);
  if (!sets) {
    const bool named = sets.error().text.starts_with(directory);
    return Error{sets.error().code, (named ? "" : directory + ": ") + sets.error().text};
  }
  DataLook look{.spec = std::move(spec),
                .words = std::move(words),
                .train_samples = sets->train->count(),
                .held_out_samples = sets->held_out ? sets->held_out->count() : 0,
                .left_out = std::move(sets->left_out),
                .notes = std::move(tensors.notes)};
  if (const auto note = note_on_targets(*sets->train)) look.notes.push_back(*note);
  if (look.spec.vocabulary == 0)
    if (auto error = measure(*sets->train, directory, tensors.alike, look)) return *error;
  return look;
}

std::string by(std::int64_t rows, std::int64_t columns) {
  return std::to_string(rows) + " x " + std::to_string(columns);
}

Result<IdxArray> read_idx(const fs::path& path) {
  const auto bytes = read_data_file(path, idx_bytes_max);
  if (!bytes) return bytes.error();
  return parse_idx(*bytes, path.string());
}

Look look_for_idx(const std::string& directory) {
  DataSpec spec;
  const auto find = [&directory](const std::string& name) {
    auto path = find_data_file(directory, name);
    return path ? path : find_data_file(directory, name + ".gz");
  };
  const auto images = find(spec.train_images), labels = find(spec.train_labels);
  if (!images || !labels) return std::nullopt;
  const auto pixels = read_idx(*images), classes = read_idx(*labels);
  if (!pixels) return pixels.error();
  if (!classes) return classes.error();
  if (pixels->shape.size() != 3)
    return Error{"bad-data", images->string() + ": is no list of images: it has " +
                                 std::to_string(pixels->shape.size()) +
                                 " dimensions, and one has 3 (image, row, column)"};
  if (classes->values.empty() || pixels->shape[0] == 0)
    return Error{"bad-data", (classes->values.empty() ? labels : images)->string() +
                                 ": is a list with nothing in it; put another file in its place"};
  spec.shape = {1, pixels->shape[1], pixels->shape[2]};
  for (const std::int64_t extent : spec.shape)
    if (extent < 1 || extent > image_extent_max)
      return Error{"bad-data", images->string() + ": holds images of " +
                                   by(spec.shape[1], spec.shape[2]) + ", and a job takes 1 to " +
                                   std::to_string(image_extent_max) +
                                   " rows and columns; put another file in its place"};
  std::vector<std::uint8_t> seen = classes->values;
  if (std::ranges::count(seen, seen[0]) == std::ssize(seen))
    return Error{"bad-data", labels->string() + ": holds one class only, " +
                                 std::to_string(seen[0]) +
                                 "; a model learns to tell two or more apart: put samples of the "
                                 "others into the files as well"};
  const auto test_images = find(spec.test_images), test_labels = find(spec.test_labels);
  TensorLook look;
  if (!test_images != !test_labels)
    look.notes.push_back((test_images ? spec.test_labels : spec.test_images) +
                         " is missing, so a part of the training files is held out instead");
  if (test_images && test_labels) {
    const auto more = read_idx(*test_labels);
    if (!more) return more.error();
    seen.insert(seen.end(), more->values.begin(), more->values.end());
  } else {
    spec.validation_fraction = held_out_fraction;
  }
  spec.classes = std::max<std::int64_t>(2, 1 + *std::ranges::max_element(seen));
  return loaded(directory, spec,
                "IDX files of " + by(spec.shape[1], spec.shape[2]) + " grey images",
                std::move(look));
}

Look look_for_cifar(const std::string& directory) {
  DataSpec spec;
  spec.shape = {3, 32, 32};
  if (find_data_file(directory, "data_batch_1.bin", {"cifar-10-batches-bin"})) {
    spec.kind = Kind::cifar10;
    for (int i = 1; i <= 5; ++i)
      spec.train_files.push_back("data_batch_" + std::to_string(i) + ".bin");
    spec.test_files = {"test_batch.bin"};
    return loaded(directory, spec, "CIFAR-10");
  }
  // A stream of tokens may be called train.bin as well.
  if (!find_data_file(directory, "fine_label_names.txt", {"cifar-100-binary"})) return std::nullopt;
  spec.kind = Kind::cifar100;
  spec.classes = 100;
  spec.train_files = {"train.bin"};
  spec.test_files = {"test.bin"};
  return loaded(directory, spec, "CIFAR-100");
}

// At any depth, as a job looks for them; what cannot be read shows when it does.
bool holds_images(const fs::path& folder) {
  const auto found = images_below(folder);
  return !found || !found->paths.empty();
}

std::vector<std::string> folders_of_images(const fs::path& root) {
  std::vector<std::string> classes;
  for (const std::string& name : names_in(root, true))
    if (holds_images(root / name)) classes.push_back(name);
  return classes;
}

// A job wants images of all classes to train on, and none of others to test with.
std::optional<Error> check_folders(const fs::path& root, const std::string& test,
                                   const std::vector<std::string>& classes) {
  const auto wrong = [](const fs::path& folder, const std::string& why) {
    return Error{"bad-data", folder.string() + ": " + why};
  };
  const auto is_class = [&classes](const std::string& name) {
    return std::ranges::find(classes, name) != classes.end();
  };
  if (classes.size() > data_classes_max)
    return wrong(root / "train", "holds " + std::to_string(classes.size()) +
                                     " classes, and a job takes " +
                                     std::to_string(data_classes_max) + "; move some away");
  for (const std::string& name : names_in(root / "train", true))
    if (!is_class(name))
      return wrong(root / "train" / name, "holds no images (.jpg, .jpeg, .png): remove it");
  if (test.empty()) return std::nullopt;
  const std::vector<std::string> tested = folders_of_images(root / test);
  for (const std::string& name : names_in(root / test, true)) {
    if (is_class(name)) continue;
    if (std::ranges::find(tested, name) == tested.end())
      return wrong(root / test / name, "holds no images (.jpg, .jpeg, .png): remove it");
    return wrong(root / test / name,
                 "is a class that train/ lacks, so no model would learn it: remove it, or put "
                 "images of it into train/" +
                     name);
  }
  if (tested.empty())
    return wrong(root / test,
                 "holds no images of a class: put some into it, or move it away, and a part of "
                 "train/ is held out");
  for (const std::string& name : classes)
    if (std::ranges::find(tested, name) == tested.end() && fs::exists(root / test / name))
      return wrong(root / test / name,
                   "holds no images, and train/" + name + " does: put some into it, or remove it");
  return std::nullopt;
}

bool fit_a_job(const std::vector<std::string>& classes) {
  std::size_t bytes = 0;
  for (const std::string& name : classes) bytes += name.size() + 4;
  return bytes <= class_names_bytes_max && std::ranges::all_of(classes, is_file_name);
}

Look look_for_images(const std::string& directory) {
  const fs::path root(directory);
  const std::vector<std::string> classes = folders_of_images(root / "train");
  if (classes.size() < 2) return std::nullopt;
  DataSpec spec;
  spec.kind = Kind::images;
  spec.shape = {3, 64, 64};
  spec.train_files = {"train"};
  spec.classes = static_cast<std::int64_t>(classes.size());
  if (fit_a_job(classes)) spec.class_names = classes;
  for (const char* folder : {"test", "val", "valid", "validation"})
    if (spec.test_files.empty() && fs::is_directory(root / folder)) spec.test_files = {folder};
  if (spec.test_files.empty()) spec.validation_fraction = held_out_fraction;
  const std::string test = spec.test_files.empty() ? "" : spec.test_files[0];
  if (auto error = check_folders(root, test, classes)) return *error;
  return loaded(directory, spec, "folders of images");
}

Look look_for_tensors(const std::string& directory) {
  DataSpec spec;
  spec.kind = Kind::safetensors;
  if (auto error = sort_files(directory, ".safetensors", spec)) return *error;
  if (spec.train_files.empty()) return std::nullopt;
  TensorLook tensors;
  if (auto error = look_at_tensors(directory, spec, tensors)) return *error;
  return loaded(
      directory, spec,
      "safetensors files of " + std::string(spec.classes > 0 ? "classes" : "numbers to predict"),
      std::move(tensors));
}

// As many windows as training needs, of what there is; an error where there is none.
std::optional<Error> choose_length(std::uint64_t tokens, const std::string& directory,
                                   DataSpec& spec) {
  std::int64_t length = length_wanted;
  while (length > length_least && tokens / static_cast<std::uint64_t>(length) < windows_wanted)
    length /= 2;
  spec.shape = spec.target_shape = {length};
  if (tokens >= tokens_least) return std::nullopt;
  return Error{"bad-data", (fs::path(directory) / spec.train_files.at(0)).string() + ": has " +
                               std::to_string(tokens) + " tokens, and training takes " +
                               std::to_string(tokens_least) + " or more; give more text"};
}

// By its byte-order mark.
bool is_utf16(const DataFile& file) {
  std::array<std::byte, 2> mark{};
  if (file.bytes() < mark.size()) return false;
  file.read_at(0, mark);
  const std::byte ff{0xff}, fe{0xfe};
  return (mark[0] == ff && mark[1] == fe) || (mark[0] == fe && mark[1] == ff);
}

Look look_for_text(const std::string& directory) {
  DataSpec spec;
  spec.kind = Kind::text;
  if (auto error = sort_files(directory, ".txt", spec)) return *error;
  if (spec.train_files.empty()) return std::nullopt;
  std::uint64_t bytes = 0;
  TensorLook texts;
  for (const std::string& name : spec.train_files) {
    const auto file = DataFile::open(fs::path(directory) / name);
    if (!file) return file.error();
    bytes += file->bytes();
    if (is_utf16(*file))
      texts.notes.push_back(name + " is UTF-16, of which every second byte says little; write it " +
                            "as UTF-8: iconv -f UTF-16 -t UTF-8");
  }
  spec.vocabulary = spec.classes = 256;
  if (auto error = choose_length(bytes, directory, spec)) return *error;
  return loaded(directory, spec, "text, byte by byte", std::move(texts));
}

// Wider integers read as uint16 have zeros in all the same places.
class ZeroPlaces {
 public:
  void look(std::span<const std::uint16_t> words) {
    for (const std::uint16_t word : words) {
      if (word != 0) used_[count_ % 4] = true;
      ++count_;
    }
  }
  // The type that the file probably has; nullptr: uint16.
  [[nodiscard]] const char* wider_type() const {
    if (count_ < words_least || !used_[0] || used_[1] || used_[3]) return nullptr;
    return used_[2] ? "uint32" : "int64";
  }

 private:
  static constexpr std::uint64_t words_least = 16;
  std::uint64_t count_ = 0;
  std::array<bool, 4> used_{};  // by the place modulo 4
};

Error not_uint16(const std::string& path, const std::string& type) {
  const std::string name = "'" + fs::path(path).filename().string() + "'";
  return Error{"bad-data", path + ": holds " + type + " tokens, it seems: " +
                               (type == "uint32" ? "every second" : "all but every fourth") +
                               " uint16 is 0; write it as uint16: numpy.fromfile(" + name + ", '" +
                               type + "').astype('uint16').tofile(" + name + ")"};
}

Look look_for_tokens(const std::string& directory) {
  DataSpec spec;
  spec.kind = Kind::tokens;
  if (auto error = sort_files(directory, ".bin", spec)) return *error;
  if (spec.train_files.empty()) return std::nullopt;
  std::uint64_t tokens = 0;
  std::uint16_t largest = 1;
  std::vector<std::string> all = spec.train_files;
  all.insert(all.end(), spec.test_files.begin(), spec.test_files.end());
  for (const std::string& name : all) {
    const auto file = DataFile::open(fs::path(directory) / name);
    if (!file) return file.error();
    if (file->bytes() % 2 != 0)
      return bad_data(file->path(),
                      "has an odd number of bytes, so it is no list of uint16 tokens");
    std::vector<std::uint16_t> piece(read_bytes / 2);
    ZeroPlaces zeros;
    for (std::uint64_t at = 0; at < file->bytes();) {
      const auto length =
          static_cast<std::size_t>(std::min<std::uint64_t>(read_bytes, file->bytes() - at));
      file->read_at(at, std::as_writable_bytes(std::span(piece)).first(length));
      for (std::size_t i = 0; i < length / 2; ++i) largest = std::max(largest, piece[i]);
      zeros.look(std::span(piece).first(length / 2));
      at += length;
    }
    if (const char* type = zeros.wider_type()) return not_uint16(file->path(), type);
    if (!is_held_out(name)) tokens += file->bytes() / 2;
  }
  spec.vocabulary = spec.classes = std::max<std::int64_t>(2, std::int64_t{largest} + 1);
  if (auto error = choose_length(tokens, directory, spec)) return *error;
  return loaded(directory, spec, "uint16 tokens");
}

Error nothing_known(const std::string& directory) {
  if (const auto classes = folders_of_images(fs::path(directory) / "train"); classes.size() == 1)
    return Error{"no-data", directory + "/train: one class only, " + classes[0] +
                                "/; a model learns to tell two or more apart: give each class a "
                                "folder of its images"};
  return unknown_data(directory, names_in(directory, true), names_in(directory, false));
}

}  // namespace

Result<DataLook> look_at_data(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error))
    return Error{"no-data", directory + ": is no directory; name the one with the data"};
  try {
    for (const auto look : {look_for_idx, look_for_cifar, look_for_images, look_for_tensors,
                            look_for_text, look_for_tokens})
      if (Look found = look(directory)) return *found;
  } catch (const DataError& damaged) {
    return Error{damaged.code(), damaged.what()};
  }
  return nothing_known(directory);
}

}  // namespace gossipd
