#include "models/data/unknown_data.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "models/data/image_files.h"
#include "models/job/data_spec.h"

namespace gossipd {
namespace {

constexpr std::size_t entries_shown = 8;

// What to do with files of other kinds.
std::string way_to_convert(const std::vector<std::string>& files) {
  const auto has = [&files](std::initializer_list<const char*> endings) {
    return std::ranges::any_of(files, [&](const std::string& file) {
      return std::ranges::any_of(endings, [&](const char* end) { return file.ends_with(end); });
    });
  };
  if (has({".csv", ".tsv", ".npy", ".npz", ".parquet"}))
    return "; read the file in Python and write train.safetensors with "
           "safetensors.torch.save_file({\"inputs\": x, \"targets\": y}, NAME), a row of each for "
           "a sample";
  if (has({".png", ".jpg", ".jpeg"}))
    return "; put the images of each class into a folder of its own, train/CLASS/, or all into "
           "train/ and write a job whose [data] has labels = \"file_name\" and class_names";
  return "";
}

// The two files that IDX trains on, where others of the four are there.
std::string missing_of_idx(const std::vector<std::string>& files) {
  const auto has = [&files](const std::string& name) {
    return std::ranges::find(files, name) != files.end() ||
           std::ranges::find(files, name + ".gz") != files.end();
  };
  const DataSpec names;
  const bool images = has(names.train_images), labels = has(names.train_labels);
  if (images && labels) return "";
  if (images) return names.train_labels + " is missing";
  if (labels) return names.train_images + " is missing";
  return has(names.test_images) || has(names.test_labels)
             ? names.train_images + " and " + names.train_labels + " are missing"
             : "";
}

// Folders that hold images themselves, where train/ is to be: not what is to test with.
std::vector<std::string> folders_of_images(const std::filesystem::path& root,
                                           const std::vector<std::string>& folders) {
  std::vector<std::string> found;
  for (const std::string& name : folders) {
    if (name == "train") return {};
    if (name == "test" || name == "val" || name == "valid" || name == "validation") continue;
    std::error_code error;
    for (std::filesystem::directory_iterator i(root / name, error), end; !error && i != end;
         i.increment(error))
      if (is_image_name(i->path())) {
        found.push_back(name);
        break;
      }
  }
  return found;
}

}  // namespace

Error unknown_data(const std::string& directory, std::vector<std::string> folders,
                   const std::vector<std::string>& files) {
  if (const std::string missing = missing_of_idx(files); !missing.empty())
    return Error{"no-data", directory + ": " + missing +
                                ", plain or as .gz, beside the IDX files that are there: put it "
                                "there as well (models/README.md describes them)"};
  const auto classes = folders_of_images(directory, folders);
  std::vector<std::string> names = std::move(folders);
  for (std::string& name : names) name += '/';
  names.insert(names.end(), files.begin(), files.end());
  std::error_code ignored;
  const bool is_empty = std::filesystem::is_empty(directory, ignored);
  std::string seen = !names.empty() ? "holds "
                     : is_empty     ? "is empty"
                                    : "holds neither a file nor a directory";
  for (std::size_t i = 0; i < std::min(names.size(), entries_shown); ++i)
    seen += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > entries_shown)
    seen += " and " + std::to_string(names.size() - entries_shown) + " more";
  return Error{"no-data",
               directory + ": " + seen +
                   (names.empty() ? "; gossipd knows " : ", and no files that gossipd knows: ") +
                   "train-images-idx3-ubyte and its labels (IDX), data_batch_1.bin (CIFAR), "
                   "train/CLASS/*.jpg or .png, *.safetensors "
                   "with inputs and targets, *.txt, *.bin (uint16 tokens)" +
                   (classes.empty() ? way_to_convert(files)
                                    : "; move the folders of images into a folder train, so that " +
                                          classes[0] + "/ becomes train/" + classes[0] + "/") +
                   "; models/README.md describes them"};
}

}  // namespace gossipd
