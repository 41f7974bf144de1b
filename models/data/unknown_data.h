// models/data/unknown_data.h - what to say of a directory without data that gossipd knows, and how
// to make it some. Pure, but for a look whether it is empty.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"

namespace gossipd {

// Code "no-data". `folders`, `files`: the names in it.
[[nodiscard]] Error unknown_data(const std::string& directory, std::vector<std::string> folders,
                                 const std::vector<std::string>& files);

}  // namespace gossipd
