// daemon/disk/finished_mark.h - STATE/finished.json: the job that this node has finished, so that a
// restart with `--until finished` ends at once.
//
// Written when such a node ends with its job, durably and before the process exits. It counts only
// for the same job with the same budget, and only while the final model is there. Any thread.
#pragma once

#include <filesystem>
#include <optional>

#include "core/base/result.h"
#include "core/base/types.h"

namespace gossipd {

struct FinishedMark {
  JobHash job{};
  Samples budget_samples = 0;  // in force at the end
  bool operator==(const FinishedMark&) const = default;
};

// Codes "no-space", "io-error".
[[nodiscard]] std::optional<Error> write_finished_mark(const std::filesystem::path& state_dir,
                                                       const FinishedMark&);
// None where there is no mark, or none that can be read: then the node goes on and finds out anew.
[[nodiscard]] std::optional<FinishedMark> read_finished_mark(
    const std::filesystem::path& state_dir);

}  // namespace gossipd
