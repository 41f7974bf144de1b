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

std::vector<std::string> class_folders(const fs::path& root, LeftOut& left_out) {
  std::vector<std::string> names;
  std::error_code error, ignored;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (is_hidden(it->path())) continue;
    if (it->is_directory(ignored))
      names.push_back(it->path().filename().string());
    else
      ++left_out[kind_of(it->path()) + " beside the classes' folders"];
  }
  std::ranges::sort(names);
  return names;
}

std::string in_words(const LeftOut& left_out) {
  std::vector<std::pair<std::string, std::size_t>> kinds(left_out.begin(), left_out.end());
  std::ranges::stable_sort(kinds, std::ranges::greater(),
                           &std::pair<std::string, std::size_t>::second);
  std::string words;
  for (std::size_t i = 0; i < std::min(kinds.size(), kinds_named_max); ++i)
    words += (i == 0 ? "" : ", ") + std::to_string(kinds[i].second) + " " + kinds[i].first;
  if (kinds.size() > kinds_named_max) words += ", and others";
  return words;
}

}  // namespace gossipd
