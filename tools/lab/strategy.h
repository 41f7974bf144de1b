// tools/lab/strategy.h - a way to train one model on several machines, as the lab runs it.
//
// `gossip` is the product, gossipd's core. All others are reference rows in references/: published
// systems, each in a small file, in virtual time and with real gradients, so that a table compares
// like with like. A strategy is constructed with its defaults, gets its knobs from the scenario
// through settings() and is started by start(); then it lives in the World's events.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "models/job/job.h"
#include "models/training/torch_engine.h"
#include "tools/lab/poison.h"
#include "tools/lab/world.h"

namespace gossipd::lab {

// Keeps the accounts of a run and evaluates; strategies report to it what they train.
class Recorder {
 public:
  virtual ~Recorder() = default;
  // `machine` has trained on `batch` samples with this loss, at a model of age `age_steps` (steps
  // that others made in between; 0 where that is undefined).
  virtual void trained(std::size_t machine, std::uint32_t batch, double loss, double age_steps) = 0;
  [[nodiscard]] virtual Samples samples() const = 0;  // of the whole cluster
  [[nodiscard]] bool budget_spent() const { return samples() >= budget; }
  Samples budget = 0;
};

struct Setup {
  const Job& job;
  World& world;
  Recorder& recorder;
  // One for each machine that trains, with its own shard. Only machine i's compute() uses engine i.
  std::vector<std::unique_ptr<GradientEngine>>& engines;
  std::uint64_t seed = 1;
  [[nodiscard]] std::size_t nodes() const { return engines.size(); }
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  // Knobs, bound to this object; keys such as "strategy.period_steps".
  [[nodiscard]] virtual std::vector<Setting> settings() = 0;
  // Knobs that conflict with each other or the job: the reason and a remedy.
  [[nodiscard]] virtual std::optional<std::string> mistake(const Job&) const {
    return std::nullopt;
  }
  virtual void start(Setup&) = 0;
  // True once the budget is spent and everything under way has been applied.
  [[nodiscard]] virtual bool finished() const = 0;
  // P floats: this machine's current model, or the server's where there is one.
  [[nodiscard]] virtual std::span<const float> model(std::size_t machine) = 0;
  [[nodiscard]] virtual bool same_model_everywhere() const { return false; }
  // Floats of optimiser and correction state that the method keeps beside the model(s): {on the
  // server, on each node}.
  struct State {
    std::uint64_t server_floats = 0;
    std::uint64_t node_floats = 0;
  };
  [[nodiscard]] virtual State state() const { return {}; }

  // ---- faults: only gossip survives them; reference rows refuse such scenarios ----
  [[nodiscard]] virtual bool takes_events() const { return false; }
  virtual void kill(std::size_t) {}
  virtual void restart(std::size_t) {}
  virtual void freeze(std::size_t, Duration) {}
  virtual void leave(std::size_t) {}
  [[nodiscard]] virtual bool takes_part(std::size_t) const { return true; }
  virtual void reachable(std::set<std::pair<std::size_t, std::size_t>>) {}
  virtual void starts_at(std::size_t, Duration) {}
  virtual void poison(const PoisonSpec&) {}
};

struct StrategyEntry {
  std::string name;     // "dc-asgd"
  std::string summary;  // one line
  std::string source;   // the paper
  std::unique_ptr<Strategy> (*make)();
};
// All rows: gossip first, then the references in alphabetical order.
[[nodiscard]] const std::vector<StrategyEntry>& strategies();

}  // namespace gossipd::lab
