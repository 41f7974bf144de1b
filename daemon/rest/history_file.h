// daemon/rest/history_file.h - STATE/history.jsonl: the history of a node's training over its
// restarts.
//
// A line of JSON for each point, after one that says the format and the interval. New points are
// appended; when the history thins itself out the file is written anew, so it never has more lines
// than the history has points. The end of a line that a crash cut off is dropped. A file that is
// damaged otherwise is set aside as history.corrupt.jsonl, and what came before the damage is kept.
// Appending does not wait for the disk: a power cut costs the last points. Any thread, one at a
// time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/rest/history.h"

namespace gossipd {

struct StoredHistory {
  double interval_s = 0;  // 0: there is none
  std::vector<HistoryPoint> points;
  bool whole = true;    // the file has just these points, so new ones may be appended
  std::string warning;  // not empty: what is damaged, and where it lies now
};

// Error "io-error": what lies there cannot be read, and may be whole, so it stays as it is.
[[nodiscard]] Result<StoredHistory> load_history(const std::filesystem::path& state_dir);
// Codes "no-space", "io-error".
[[nodiscard]] std::optional<Error> save_history(const std::filesystem::path& state_dir,
                                                const History::Unsaved&);

}  // namespace gossipd
