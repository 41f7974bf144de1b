// models/data/image_files.h - the image files of a folder, and what of it is left out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace gossipd {

[[nodiscard]] bool is_image_name(const std::filesystem::path& path);

using LeftOut = std::map<std::string, std::size_t>;  // ".webp" or "link to a folder": how many

struct ImageFiles {
  std::vector<std::string> paths;  // of JPEG and PNG files, in order
  LeftOut left_out;
};

// Below `root`, at any depth; names that begin with a dot are none, nor is what is in such folders.
// Codes "bad-data": what has an image's name and is no file, as a link to nothing;
// "data-unreadable": a folder that cannot be read.
[[nodiscard]] Result<ImageFiles> images_below(const std::filesystem::path& root);

// The folders of classes in `root`, links to some as well, sorted; what lies beside them is added.
[[nodiscard]] std::vector<std::string> class_folders(const std::filesystem::path& root,
                                                     LeftOut& left_out);

// "16 .webp, 1 link to a folder"; empty: nothing.
[[nodiscard]] std::string in_words(const LeftOut& left_out);

}  // namespace gossipd
