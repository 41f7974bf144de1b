#include "models/data/image_set.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "models/files/data_file.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t image_file_bytes_max = 256ull << 20;

// The class whose name the file name begins with, followed by no letter; the longest, so that
// "cat_big.1.jpg" may be one.
std::int64_t class_of_file(const std::string& name, const std::vector<std::string>& classes) {
  std::int64_t best = -1;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::string& word = classes[i];
    const bool fits = name.starts_with(word) && name.size() > word.size() &&
                      std::isalpha(static_cast<unsigned char>(name[word.size()])) == 0;
    if (fits && (best < 0 || word.size() > classes[static_cast<std::size_t>(best)].size()))
      best = static_cast<std::int64_t>(i);
  }
  return best;
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 10; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > 10 ? text + ", ..." : text;
}

void add(const LeftOut& more, LeftOut& left_out) {
  for (const auto& [kind, files] : more) left_out[kind] += files;
}

// The job's, or the folders to train on; those to test with are numbered alike.
Result<std::vector<std::string>> classes_of(const DataSpec& data, const fs::path& directory) {
  if (!data.class_names.empty()) return data.class_names;
  const fs::path root = directory / data.train_files.at(0);
  LeftOut ignored;
  std::vector<std::string> found = class_folders(root, ignored);
  if (static_cast<std::int64_t>(found.size()) != data.classes)
    return bad_data(root.string(), "holds " + std::to_string(found.size()) + " folders (" +
                                       some_of(found) + ") but the job has " +
                                       std::to_string(data.classes) + " classes");
  return found;
}

Error no_class(const DataSpec& data, const std::vector<std::string>& classes,
               const fs::path& folder) {
  if (!data.class_names.empty())
    return bad_data(folder.string(), "is none of the job's class_names: " + some_of(classes));
  const std::string& train = data.train_files.at(0);
  return Error{"bad-data",
               folder.string() + ": is a class that " + train +
                   "/ lacks, so it has no number; remove it, or put images of it into " + train +
                   "/" + folder.filename().string()};
}

// Only the first bytes: a set may hold millions of files.
std::optional<Error> check_magic(const std::string& path) {
  const auto file = DataFile::open(path);
  if (!file) return file.error();
  std::array<std::byte, 3> start{};
  if (file->bytes() < start.size()) return bad_data(path, "is too short for an image");
  try {
    file->read_at(0, start);
  } catch (const DataError& error) {
    return bad_data(path, error);
  }
  const bool jpeg = start == std::array{std::byte{0xff}, std::byte{0xd8}, std::byte{0xff}};
  const bool png = start == std::array{std::byte{0x89}, std::byte{'P'}, std::byte{'N'}};
  if (!jpeg && !png)
    return bad_data(path, "is neither a JPEG nor a PNG file (its first bytes say so)");
  return std::nullopt;
}

}  // namespace

Result<std::vector<ImageSet::File>> ImageSet::list(const DataSpec& data,
                                                   const std::string& directory,
                                                   const std::string& folder, LeftOut& left_out) {
  const fs::path root = fs::path(directory) / folder;
  std::error_code error;
  if (!fs::is_directory(root, error))
    return no_data(directory, "the folder '" + folder + "' is not",
                   "images, one folder for each class, or the class in the file names with labels "
                   "= \"file_name\"");
  std::vector<File> files;
  if (data.labels == DataSpec::Labels::file_name) {
    auto images = images_below(root);
    if (!images) return images.error();
    add(images->left_out, left_out);
    for (std::string& path : images->paths) {
      const std::int64_t label =
          class_of_file(fs::path(path).filename().string(), data.class_names);
      if (label < 0)
        return bad_data(path,
                        "begins with none of the job's class_names: " + some_of(data.class_names));
      files.push_back({std::move(path), label});
    }
    if (files.empty()) return bad_data(root.string(), "holds no .jpg, .jpeg or .png file");
    return files;
  }
  const auto named = classes_of(data, directory);
  if (!named) return named.error();
  const std::vector<std::string>& classes = *named;
  const std::vector<std::string> found = class_folders(root, left_out);
  for (const std::string& name : found)
    if (std::ranges::find(classes, name) == classes.end())
      return no_class(data, classes, root / name);
  const bool trained_on = folder == data.train_files.at(0);
  for (std::size_t c = 0; c < classes.size(); ++c) {
    if (!trained_on && std::ranges::find(found, classes[c]) == found.end()) continue;
    auto images = images_below(root / classes[c]);
    if (!images) return images.error();
    add(images->left_out, left_out);
    if (images->paths.empty())
      return bad_data((root / classes[c]).string(),
                      "holds no .jpg, .jpeg or .png file, but it is one of the job's classes");
    for (std::string& path : images->paths)
      files.push_back({std::move(path), static_cast<std::int64_t>(c)});
  }
  if (files.empty())
    return bad_data(root.string(), "holds no folder of a class: " + some_of(classes));
  return files;
}

Result<std::shared_ptr<const DataSet>> ImageSet::open(const DataSpec& data,
                                                      const std::string& folder,
                                                      const LoadOptions& options,
                                                      LeftOut& left_out) {
  auto files = list(data, options.directory, folder, left_out);
  if (!files) return files.error();
  for (std::size_t i = 0; options.check_values && i < files->size(); ++i)
    if (auto error = check_magic((*files)[i].path)) return *error;
  return std::shared_ptr<const DataSet>(
      new ImageSet(data, std::move(*files), options.image_cache_bytes));
}

ImageSet::ImageSet(const DataSpec& data, std::vector<File> files, std::uint64_t cache_bytes)
    : DataSet(data),
      files_(std::move(files)),
      size_{data.shape.at(0), data.shape.at(1), data.shape.at(2), data.fit},
      writer_(data),
      kept_(files_.size()),
      room_(cache_bytes / writer_.image_bytes()) {}

ImageSet::Pixels ImageSet::pixels_of(std::size_t index) const {
  {
    const std::lock_guard lock(mutex_);
    if (kept_[index]) return kept_[index];
  }
  const auto file = read_data_file(files_[index].path, image_file_bytes_max);
  if (!file) throw DataError(file.error());
  auto decoded = decode_image(*file, files_[index].path, size_);
  if (!decoded) throw DataError(decoded.error());
  auto pixels = std::make_shared<const std::vector<std::uint8_t>>(std::move(*decoded));
  const std::lock_guard lock(mutex_);
  if (room_ > 0 && !kept_[index]) {
    --room_;
    kept_[index] = pixels;
  }
  return pixels;
}

void ImageSet::write(std::size_t index, const Variation* variation, const Batch& batch,
                     std::size_t at) const {
  const Pixels pixels = pixels_of(index);
  writer_.write(pixels->data(), variation, place<float>(batch.inputs, at, pixels->size()));
  place<std::int64_t>(batch.targets, at, 1)[0] = files_[index].label;
}

}  // namespace gossipd
