#include "models/data/image_files.h"

#include <algorithm>
#include <cctype>

#include "models/files/data_file.h"

namespace gossipd {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t image_files_max = 100'000'000;
constexpr std::size_t kinds_named_max = 6;
constexpr std::size_t suffix_shown_max = 16;

using Counts = std::map<std::string, std::size_t>;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::string suffix_of(const fs::path& path) {
  std::string suffix = path.extension().string();
  std::ranges::transform(suffix, suffix.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return suffix;
}

// What a file that is left out counts as.
std::string kind_of(const fs::path& path) {
  const std::string suffix = suffix_of(path);
  const bool plain =
      std::ranges::all_of(suffix, [](unsigned char c) { return c > ' ' && c < 0x7f; });
  return suffix.empty() || suffix.size() > suffix_shown_max || !plain ? "without a known suffix"
                                                                      : suffix;
}

std::optional<Error> take_in(const fs::directory_entry& entry, ImageFiles& found) {
  std::error_code ignored;  // of a link to nothing
  if (entry.is_directory(ignored)) {
    if (entry.is_symlink(ignored)) ++found.left_out["link to a folder"];
    return std::nullopt;
  }
  if (!is_image_name(entry.path())) {
    ++found.left_out[kind_of(entry.path())];
    return std::nullopt;
  }
  if (!entry.is_regular_file(ignored))
    return bad_data(entry.path().string(), entry.is_symlink(ignored)
                                               ? "is a link to nothing that can be read as a file"
                                               : "has an image's name, but is no file");
  if (found.paths.size() < image_files_max) found.paths.push_back(entry.path().string());
  return std::nullopt;
}

void count(const fs::path& folder, Counts& all) {
  if (const auto found = images_below(folder))
    for (const auto& [kind, files] : found->left_out) all[kind] += files;
}

// Folders of classes are read through links as well; what lies beside them is not.
void count_by_class(const fs::path& root, Counts& all) {
  std::error_code error;
  for (fs::directory_iterator i(root, error), end; !error && i != end; i.increment(error)) {
    std::error_code ignored;
    if (is_hidden(i->path())) continue;
    if (i->is_directory(ignored))
      count(i->path(), all);
    else
      ++all[kind_of(i->path()) + " beside the classes' folders"];
  }
}

}  // namespace

bool is_image_name(const fs::path& path) {
  const std::string suffix = suffix_of(path);
  return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png";
}

Result<ImageFiles> images_below(const fs::path& root) {
  ImageFiles found;
  std::error_code error;
  fs::path last = root;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    last = it->path();
    if (is_hidden(last))
      it.disable_recursion_pending();
    else if (auto wrong = take_in(*it, found))
      return *wrong;
  }
  if (error) return Error{data_unreadable, last.string() + ": cannot be read: " + error.message()};
  std::ranges::sort(found.paths);
  return found;
}

std::string left_out_words(const DataSpec& spec, const std::string& directory) {
  if (spec.kind != DataSpec::Kind::images) return "";
  Counts all;
  for (const auto* folders : {&spec.train_files, &spec.test_files})
    for (const std::string& folder : *folders)
      if (spec.labels == DataSpec::Labels::file_name)
        count(fs::path(directory) / folder, all);
      else
        count_by_class(fs::path(directory) / folder, all);
  std::vector<std::pair<std::string, std::size_t>> kinds(all.begin(), all.end());
  std::ranges::stable_sort(kinds, std::ranges::greater(),
                           &std::pair<std::string, std::size_t>::second);
  std::string words;
  for (std::size_t i = 0; i < std::min(kinds.size(), kinds_named_max); ++i)
    words += (i == 0 ? "" : ", ") + std::to_string(kinds[i].second) + " " + kinds[i].first;
  if (kinds.size() > kinds_named_max) words += ", and others";
  return words;
}

}  // namespace gossipd
