// daemon/disk/run_account.h - STATE/trainer-run.json: which run of an external trainer counts for
// this node, and from where. Written before its first step is counted. One thread at a time.
#pragma once

#include <filesystem>
#include <optional>

#include "models/external/external_engine.h"

namespace gossipd {

// Nothing: there is none, or it is damaged; then the next trainer is a new run.
[[nodiscard]] std::optional<RunAccount> read_run_account(const std::filesystem::path&);
// Codes as of write_durably().
[[nodiscard]] std::optional<Error> write_run_account(const std::filesystem::path&,
                                                     const RunAccount&);

}  // namespace gossipd
