// models/job/epochs.h - the key `epochs` of a job file, in place of `budget_samples`.
//
// The job that a cluster trains has a number of samples, which every node understands alike and
// which its hash covers. A file may give epochs instead: so many times the training samples that
// the founder's data directory holds, all members together, whatever part of them each has
// (`shard`, `division`). The founder counts once, and the canonical text has budget_samples: it is
// the same as if that number had been written, byte for byte. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/job/job.h"

namespace gossipd {

inline constexpr double epochs_max = 1e6;

// 0: the text has no such key, or is no TOML (Job::parse() says why). Code "bad-config".
[[nodiscard]] Result<double> epochs_of(std::string_view text, const std::string& origin);
// The text with budget_samples for `epoch_samples` in its place, on the same line; unchanged where
// it has no such key. Code "bad-config".
[[nodiscard]] Result<std::string> with_budget(const std::string& text, Samples epoch_samples,
                                              const std::string& origin);
// As Job::load(), with epochs; `epoch_samples` may be missing for a file without them.
[[nodiscard]] Result<Job> load_job(const std::string& path, std::optional<Samples> epoch_samples);

}  // namespace gossipd
