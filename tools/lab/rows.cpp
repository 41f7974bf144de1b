#include "tools/lab/rows.h"

#include <algorithm>

namespace gossipd::lab {

Summary Row::of(double (*figure)(const RunResult&)) const {
  std::vector<double> values;
  for (const RunResult& run : runs) values.push_back(figure(run));
  return summarise(values);
}

namespace {

// In what the settings of two runs differ, as far as the results tell; else empty.
std::string unlike_settings(const RunResult& a, const RunResult& b) {
  const auto both = [](const std::string& what, const std::string& x, const std::string& y) {
    return what + " " + x + " and " + y;
  };
  if (a.strategy != b.strategy) return both("strategy.name", a.strategy, b.strategy);
  if (a.nodes != b.nodes) return both("nodes", std::to_string(a.nodes), std::to_string(b.nodes));
  for (const auto& [key, value] : a.knobs)
    if (const auto other = b.knobs.find(key); other != b.knobs.end() && other->second != value)
      return both(key, value, other->second);
  if (a.floats != b.floats)
    return both("model floats", std::to_string(a.floats), std::to_string(b.floats));
  if (!a.settings.empty() && !b.settings.empty() && a.settings != b.settings)
    return "a setting of the scenario, such as its job's";
  return "";
}

Error unlike_runs(const std::string& file, const RunResult& a, const RunResult& b,
                  const std::string& unlike) {
  return Error{"unlike-runs",
               file + ": row '" + a.name + "' has runs with unlike settings (seeds " +
                   std::to_string(a.seed) + " and " + std::to_string(b.seed) + ": " + unlike +
                   "), whose mean says nothing; remove the lines of one of them, or "
                   "run them again with --set name=ANOTHER"};
}

}  // namespace

Result<std::vector<Row>> gather_rows(const std::vector<std::string>& files) {
  std::vector<Row> rows;
  for (const std::string& file : files) {
    Result<std::vector<RunResult>> results = read_results(file, false);
    if (!results) return results.error();
    for (RunResult& result : *results) {
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&](const Row& r) { return r.name == result.name; });
      if (row != rows.end())
        if (const std::string unlike = unlike_settings(row->runs.front(), result); !unlike.empty())
          return unlike_runs(file, row->runs.front(), result, unlike);
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
