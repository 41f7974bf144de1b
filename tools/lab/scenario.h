// tools/lab/scenario.h - a scenario: machines, wires, job, data, strategy, events. A TOML file.
//
// README.md beside this file lists its keys. As in every configuration of gossipd, unknown keys are
// errors with "did you mean", and one run shows all mistakes of a file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/lab/poison.h"
#include "tools/lab/strategy.h"

namespace gossipd::lab {

inline constexpr std::size_t lab_nodes_max = 256;

struct EventSpec {
  enum class What { kill, start, freeze, leave, speed, cut, heal };
  What what = What::kill;
  double at_s = 0;
  std::size_t node = 0;   // from 0
  std::size_t other = 0;  // cut, heal: the other end
  double for_s = 0;       // freeze
  double speed = 1;
};

struct Scenario {
  std::string name;  // of the row in tables
  // canonical: every key given, with files merged in; identifies a run together with the seed
  std::string text;
  Job job;
  std::string data_dir;
  bool dirichlet = false;
  double alpha = 0.3;
  bool equal_sizes = true;
  std::vector<MachineSpec> machines;
  std::vector<double> starts_at_s;  // of each machine
  WireSpec wire;
  std::map<std::pair<std::size_t, std::size_t>, WireSpec> wires;
  enum class Topology { overlay, full, ring, random } topology = Topology::overlay;
  std::size_t degree = 3;  // of the random topology
  std::string strategy = "gossip";
  std::map<std::string, std::string> knobs;  // by key, as set() takes them
  std::vector<EventSpec> events;
  PoisonSpec poison;
  std::size_t evaluate_nodes = 1;  // on the way; at the end up to final_nodes
  bool evaluate_first = false;     // on the way always the first ones, or who passes the mark first
  std::size_t final_nodes = 8;
  double target_accuracy = 0.88;
  // virtual; 0: 10 minutes plus twenty times the duration of equal work at the slowest pace
  double time_limit_s = 0;

  // Reads the file at `path` and merges in its job file and `overrides` (each "a.b=value").  Codes
  // "bad-toml", "bad-config".
  static Result<Scenario> load(const std::string& path, const std::vector<std::string>& overrides);
  // A new strategy of this scenario with its knobs set.
  [[nodiscard]] std::unique_ptr<Strategy> make_strategy() const;
  // The job of one seed, which differs only in job.seed.
  [[nodiscard]] Job job_of(std::uint64_t seed) const;
  // Identity of (text, seed) in 16 hex digits, by which a resumed campaign skips finished runs.
  [[nodiscard]] std::string run_id(std::uint64_t seed) const;
  [[nodiscard]] std::string settings_id() const { return run_id(0); }  // of text alone
};

}  // namespace gossipd::lab
