// tools/lab/run.h - one scenario with one seed, from start to figures.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "tools/lab/scenario.h"

namespace gossipd::lab {

struct CurvePoint {
  double seconds = 0;   // virtual
  Samples samples = 0;  // of the whole cluster
  std::uint64_t bytes = 0;
  double accuracy = 0;  // mean over the nodes evaluated
  double loss = 0;
};

// All figures except `wall_seconds` are independent of the machine that runs the lab.
struct RunResult {
  std::string id, name, strategy;
  std::string settings;  // Scenario::settings_id(); empty in files of older builds
  std::uint64_t seed = 0;
  std::map<std::string, std::string> knobs;
  std::size_t nodes = 0;
  std::uint64_t floats = 0;
  bool finished = false;          // false: stopped at run.time_limit_s, or all nodes were gone
  std::vector<double> accuracy;   // of the nodes evaluated at the end
  double loss = 0;                // mean of theirs, held-out
  double train_loss = 0;          // mean over the samples of the last tenth of the budget
  double consensus_distance = 0;  // largest ‖x_i − mean‖ / ‖mean‖ at the end
  double seconds = 0;             // virtual
  double seconds_to_target = 0;   // 0: not reached, or before the first evaluation
  double target_accuracy = 0;
  Samples samples = 0;
  Step steps = 0;  // of all nodes
  std::uint64_t bytes = 0, messages = 0, dense_baseline_bytes = 0;
  double age_mean = 0, age_max = 0;  // in steps
  std::uint64_t state_bytes_server = 0, state_bytes_node = 0;
  double step_time_variation = 0;  // standard deviation over mean of all steps' virtual times
  std::vector<CurvePoint> curve;
  double wall_seconds = 0;

  [[nodiscard]] double accuracy_mean() const;
};

[[nodiscard]] nlohmann::json to_json(const RunResult&);
[[nodiscard]] Result<RunResult> result_from_json(const nlohmann::json&);

struct RunOptions {
  int threads = 2;
  // Called occasionally with the spent share of the budget.
  std::function<void(double share)> progress;
};

// Codes "no-data", "bad-data", "bad-config".
[[nodiscard]] Result<RunResult> run_scenario(const Scenario&, std::uint64_t seed,
                                             const RunOptions&);

}  // namespace gossipd::lab
