// models/files/model_file.h - a file that a job names: identified by its content, read in pieces.
// Any thread.
#pragma once

#include <filesystem>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

// Reads the whole file. Codes "bad-config": it is missing, empty, not this user's to read or longer
// than `bytes_max`; "io-error": it cannot be read now.
[[nodiscard]] Result<JobFile> identify_file(const std::filesystem::path&,
                                            std::uint64_t bytes_max = job_file_bytes_max);

}  // namespace gossipd
