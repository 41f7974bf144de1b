#include "tools/lab/rows.h"

#include <algorithm>

namespace gossipd::lab {

Summary Row::of(double (*figure)(const RunResult&)) const {
  std::vector<double> values;
  for (const RunResult& run : runs) values.push_back(figure(run));
  return summarise(values);
}

Result<std::vector<Row>> gather_rows(const std::vector<std::string>& files) {
  std::vector<Row> rows;
  for (const std::string& file : files) {
    Result<std::vector<RunResult>> results = read_results(file, false);
    if (!results) return results.error();
    for (RunResult& result : *results) {
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&](const Row& r) { return r.name == result.name; });
      if (row == rows.end()) row = rows.insert(rows.end(), Row{result.name, result.strategy, {}});
      const auto same = std::find_if(row->runs.begin(), row->runs.end(),
                                     [&](const RunResult& r) { return r.seed == result.seed; });
      if (same != row->runs.end())
        *same = std::move(result);
      else
        row->runs.push_back(std::move(result));
    }
  }
  for (Row& row : rows)
    std::sort(row.runs.begin(), row.runs.end(),
              [](const RunResult& a, const RunResult& b) { return a.seed < b.seed; });
  return rows;
}

Summary paired_difference(const Row& row, const Row& base, double (*figure)(const RunResult&)) {
  std::vector<double> differences;
  for (const RunResult& run : row.runs)
    for (const RunResult& other : base.runs)
      if (run.seed == other.seed) differences.push_back(figure(run) - figure(other));
  return summarise(differences);
}

}  // namespace gossipd::lab
