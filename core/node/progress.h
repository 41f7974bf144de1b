// core/node/progress.h - how many samples the cluster has trained on, and how many it is to.
//
// The problem: a node's own count is spread over its trainer's counter, what a restart lost and the
// others remember, and what it trained on under a former id; the others' counts are old by
// different times. Schedule and end of the job follow the sum, and a trainer that has been told a
// sum cannot be told less. The budget is the job's until an operator, or an early stop, sets
// another.
//
// The answer: one owner for these counts, which takes the estimate for the other members as an
// argument and says what the trainer is to know. A later budget wins, from any member; an operator
// is told when it replaces a command given here. Pure; core strand. All counts are samples.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/membership/member.h"

namespace gossipd {

class Progress {
 public:
  // What a restart brings along.
  struct Start {
    Samples own = 0;     // as this id last published
    Samples former = 0;  // of the trainer's counter: trained on under former ids
    double rate = 0;     // samples per second when this node last trained; 0: it never has
    Budget budget;       // revision 0: the job's own
  };
  explicit Progress(const Start& start)
      : beyond_counter_(start.own),
        former_(start.former),
        rate_(start.rate),
        budget_(start.budget) {}

  // ---- this node's own samples ----
  // Never falls.
  [[nodiscard]] Samples own() const { return std::max(recovered_, trained_ + beyond_counter_); }
  // The trainer stands, at this counter; `known`: own samples that disk or members know of.
  // `lasts`: the counter outlives this process, so what it lacks now it may have later.
  void on_trainer_ready(Samples counter, Samples known, bool lasts = false);
  void on_snapshot(Samples counter);
  // Members know of so many own samples, at that own step. True: that is more than this node knew.
  // The trainer may have counted some of them since the last snapshot, so the next one says which
  // are lost.
  bool recover(Samples known, Step step);
  // What members remember of the counters of a trainer that outlives this process, under all ids;
  // 0: they do not know more than it. Another trainer makes lost steps anew.
  [[nodiscard]] Samples remembered() const {
    return counter_lasts_ && steps_recovered_ > 0 ? recovered_ + former_ : 0;
  }
  [[nodiscard]] Step remembered_step() const { return counter_lasts_ ? steps_recovered_ : 0; }
  // Samples per second of this node when it last trained: what others' claims are judged by.
  void note_rate(double samples_per_second) { rate_ = samples_per_second; }
  [[nodiscard]] double rate() const { return rate_; }
  // The next id of this node takes this over as its `former`. Before the trainer stands its counter
  // is not known, and is about what this id last published.
  [[nodiscard]] Samples trained_under_all_ids() const {
    return former_ + (trainer_stands_ ? trained_ : beyond_counter_);
  }

  // ---- the cluster's; `others`: estimate for all other members ----
  // What schedule and budget depend on, but for time, has changed since the last call. `news`: of
  // the directory.
  [[nodiscard]] bool has_changed(Samples others, std::uint64_t news, Phase phase);
  void look_again() { seen_ = {}; }
  // Samples trained on elsewhere, if the trainer is to be told a new count.
  [[nodiscard]] std::optional<Samples> news_for_trainer(Samples others);
  // The budget is spent, by what the trainer was told or is to be told: a trainer that has stopped
  // would be asked for steps for nothing, round after round.
  [[nodiscard]] bool is_spent(Samples others) const;

  // ---- the budget ----
  // The job's own; 0: no end.
  void on_job(Samples budget) { job_budget_ = budget; }
  [[nodiscard]] Samples in_force() const {
    return budget_.revision > 0 ? budget_.samples : job_budget_;
  }
  [[nodiscard]] const Budget& budget() const { return budget_; }
  void set(const Budget& budget) { budget_ = budget; }
  // `others` is a lower bound here: what members have said.
  [[nodiscard]] bool leaves_room(Samples others) const { return own() + others < in_force(); }
  // A budget beyond the one in force, or beyond what has been trained on already, as far as that is
  // at most `overshoot_max` times the one in force. Error "bad-budget" if that cannot be, or leaves
  // nothing to train on.
  [[nodiscard]] Result<Budget> extended_by(Samples more, Samples others) const;
  // A budget that ends the job at the samples trained on so far; none: the budget is spent.
  [[nodiscard]] std::optional<Budget> ended_now(Samples others) const;
  // An operator here has set the budget in force.
  void note_command() { commanded_ = true, overridden_.clear(); }
  // A later budget is said by a member: log words if a command here is in force no more.
  [[nodiscard]] std::optional<std::string> override_command(const Budget& by,
                                                            const std::string& name, NodeId id);
  // Words for the operator: the last command that is in force no more, and why; empty: none.
  [[nodiscard]] const std::string& overridden() const { return overridden_; }

  static constexpr Samples overshoot_max = 2;

 private:
  struct Seen {
    Samples own = 0, others = 0;
    Budget budget;
    std::uint64_t news = 0;
    Phase phase = Phase::joining;
    bool operator==(const Seen&) const = default;
  };

  [[nodiscard]] Samples under_this_id(Samples counter) const;
  [[nodiscard]] Samples beyond_trainer(Samples others) const;

  bool trainer_stands_ = false;
  Samples trained_ = 0;         // the trainer's counter, less `former_`
  Samples beyond_counter_ = 0;  // own samples that only disk or members know of
  // The trainer's counter outlives this process: `recovered_` stays a floor, and nothing is beyond.
  bool counter_lasts_ = false;
  Samples recovered_ = 0;  // heard from members since the last snapshot; 0: none
  Step steps_recovered_ = 0;
  Samples former_ = 0;
  double rate_ = 0;           // 0: this node has never trained
  Samples told_trainer_ = 0;  // trained on elsewhere, as the trainer knows; never falls
  Samples job_budget_ = 0;
  Budget budget_;  // in force if its revision is not 0
  bool commanded_ = false;
  std::string overridden_;
  Seen seen_;  // at the last has_changed()
};

}  // namespace gossipd
