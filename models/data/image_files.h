// models/data/image_files.h - the image files of a folder, and what of it is left out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "models/job/data_spec.h"

namespace gossipd {

[[nodiscard]] bool is_image_name(const std::filesystem::path& path);

struct ImageFiles {
  std::vector<std::string> paths;               // of JPEG and PNG files, in order
  std::map<std::string, std::size_t> left_out;  // ".webp" or "link to a folder": how many
};

// Below `root`, at any depth; names that begin with a dot are none, nor is what is in such folders.
// Codes "bad-data": what has an image's name and is no file, as a link to nothing;
// "data-unreadable": a folder that cannot be read.
[[nodiscard]] Result<ImageFiles> images_below(const std::filesystem::path& root);

// What of the training and test folders a job of images does not take, in words
// ("16 .webp, 1 link to a folder"); empty: nothing, or a job of other data.
[[nodiscard]] std::string left_out_words(const DataSpec& spec, const std::string& directory);

}  // namespace gossipd
