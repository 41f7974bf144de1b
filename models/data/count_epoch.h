// models/data/count_epoch.h - how many samples an epoch of a job is, counted in a data directory.
#pragma once

#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

// None: the job file gives budget_samples (or cannot be read, which loading it says). Values that
// lie on the disk are not read. Codes "bad-config", "no-data", "bad-data".
[[nodiscard]] Result<std::optional<Samples>> count_epoch(const std::string& job_path,
                                                         const std::string& data_dir);

}  // namespace gossipd
