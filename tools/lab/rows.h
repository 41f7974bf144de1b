// tools/lab/rows.h - results grouped into rows: all seeds of one name, in the file's order.
#pragma once

#include "tools/lab/results_file.h"
#include "tools/lab/statistics.h"

namespace gossipd::lab {

struct Row {
  std::string name, strategy;
  std::vector<RunResult> runs;  // by seed
  [[nodiscard]] Summary of(double (*figure)(const RunResult&)) const;
};

// In order of first appearance. Of a seed that ran twice the later run counts. Code "unlike-runs":
// runs of one name have other settings, as after a change of the scenario.
[[nodiscard]] Result<std::vector<Row>> gather_rows(const std::vector<std::string>& files);
// A figure of `row` minus that of `base`, over the seeds that both have.
[[nodiscard]] Summary paired_difference(const Row& row, const Row& base,
                                        double (*figure)(const RunResult&));

}  // namespace gossipd::lab
