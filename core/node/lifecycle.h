// core/node/lifecycle.h - the phase a node is in, and what belongs to each phase.
//
// The problem: the operator, the model, the budget and the disk all move a node on, at any time and
// in any order. A flag or deadline for each of them is soon read in a phase in which it means
// nothing, and a word that comes late (the job's text, on a node that is leaving) would undo what
// was promised.
//
// The answer: one phase, one table of the transitions there are, and enter() as the only way. A
// transition that the table does not have changes nothing. What a phase needs is set when it is
// entered and read while it lasts. Pure; core strand.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/membership/member.h"

namespace gossipd {

class Lifecycle {
 public:
  // `left`: by an operator's word that has lasted over the restart.
  explicit Lifecycle(bool left) : phase_(left ? Phase::left : Phase::joining) {}

  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] bool is(Phase phase) const { return phase_ == phase; }
  [[nodiscard]] bool is_training() const { return is(Phase::training); }
  // Has a model and a budget that is not spent.
  [[nodiscard]] static bool is_stepping_or_idle(Phase phase) {
    return phase == Phase::training || phase == Phase::paused ||
           phase == Phase::waiting_for_trainer;
  }
  [[nodiscard]] bool is_stepping_or_idle() const { return is_stepping_or_idle(phase_); }
  // The node is on its way out of the cluster, or out of it.
  [[nodiscard]] bool is_going() const { return is(Phase::leaving) || is(Phase::left); }
  // The job's end is reached.
  [[nodiscard]] bool is_at_end() const { return is(Phase::finishing) || is(Phase::finished); }
  [[nodiscard]] static bool allows(Phase from, Phase to);
  // True: the phase is another one now.
  bool enter(Phase to);

  // ---- joining, waiting_for_data ----
  void wait_for(std::string what) { waiting_for_ = std::move(what); }
  [[nodiscard]] const std::string& waiting_for() const { return waiting_for_; }
  // A node with a model looks for the others so long before it trains alone.
  void look_until(Instant at) { look_until_ = at; }
  [[nodiscard]] bool has_looked(Instant now) const { return now >= look_until_; }

  // ---- training, waiting_for_trainer ----
  // Of a job whose steps another process makes; `what` the node waits for without it. From now on
  // training is entered as waiting_for_trainer while it is absent. True: the phase is to change.
  [[nodiscard]] bool trainer_is(bool present, std::string what);
  [[nodiscard]] bool has_outside_trainer() const { return has_outside_trainer_; }
  [[nodiscard]] const std::string& absent_trainer() const { return absent_trainer_; }

  // ---- finishing ----
  // At the latest then the model is final, whether the models agree or not.
  void finish_by(Instant at) { deadline_ = at; }
  // ---- leaving ----
  // At the latest then the node has left. `spoken`: turns on the links that are to hear one more.
  void leave_by(Instant at, std::map<NodeId, std::uint64_t> spoken);
  // `said(peer, turns)`: more than so many turns are spoken there and out, or nobody is there.
  [[nodiscard]] bool has_said_all(const std::function<bool(NodeId, std::uint64_t)>& said) const;
  // Of finishing or leaving.
  [[nodiscard]] bool is_overdue(Instant now) const { return now >= deadline_; }

  // The process stops, whatever the phase: nothing is begun any more.
  void stop() { stopping_ = true; }
  [[nodiscard]] bool is_stopping() const { return stopping_; }

 private:
  Phase phase_;
  std::string waiting_for_;  // words; meaningful while joining or waiting_for_data
  Instant look_until_{};     // meaningful while joining with a model
  Instant deadline_{};       // meaningful while finishing or leaving
  // Turns spoken on each link when the node began to leave; meaningful while leaving.
  std::map<NodeId, std::uint64_t> spoken_;
  bool has_outside_trainer_ = false;  // for good, from the first trainer_is()
  bool trainer_is_absent_ = false;
  std::string absent_trainer_;  // words; meaningful while it is absent
  bool stopping_ = false;       // never false again
};

}  // namespace gossipd
