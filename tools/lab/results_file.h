// tools/lab/results_file.h - results of runs, one JSON object a line, so that an interrupted
// campaign can resume.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/run.h"

namespace gossipd::lab {

// A missing file is empty. A truncated last line is ignored. Error "bad-result" names file and
// line.
[[nodiscard]] Result<std::vector<RunResult>> read_results(const std::string& path,
                                                          bool may_be_missing);
[[nodiscard]] std::optional<Error> append_result(const std::string& path, const RunResult&);

// "1..10", "3", "1,4,7": at most 1,000 seeds. Code "bad-config".
[[nodiscard]] Result<std::vector<std::uint64_t>> parse_seeds(const std::string& text);

}  // namespace gossipd::lab
