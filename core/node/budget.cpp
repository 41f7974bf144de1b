// How many samples the cluster has trained on, and its budget: as the job says, until an operator
// extends it or a node finds that training leads nowhere.
#include <algorithm>

#include "core/node/node_impl.h"

namespace gossipd {
// Old stats made up for: what the schedule and the budget go by. In a small cluster none is old,
// and it is the exact sum.
Samples NodeImpl::others_estimate(Instant now) const {
  return directory_.others_samples() +
         directory_.samples_since(config_.membership.suspect_after, now, claims_.rate_max());
}

// All but what this node's trainer counts itself; never less than the trainer has been told.
// What it trained on under a former id is among the others'.
Samples NodeImpl::beyond_trainer(Instant now) const {
  const Samples others = others_estimate(now) + samples_extra_;
  return std::max(others_published_, others - std::min(others, state_.former_samples));
}

void NodeImpl::publish_progress(Instant now) {
  const Samples others = beyond_trainer(now);
  if (others == others_published_ || !model_ready_) return;
  others_published_ = others;
  emit(ProgressEffect{others});
}

// The budget is the cluster's: whoever notices first that it is spent stops stepping. The trainer
// goes by what it was told, so that counts here as well where the estimate has come down since: a
// trainer that has stopped would be asked for steps for nothing, round after round.
void NodeImpl::check_progress(Instant now) {
  if (budget_samples_ == 0 || (phase_ != Phase::training && phase_ != Phase::paused)) return;
  if (trained_samples_ + state_.former_samples + beyond_trainer(now) < budget_samples_ &&
      !most_have_finished())
    return;
  finish_deadline_ = now + config_.membership.finish_cap;
  round_.next_final_look(now + round_.final_pause());  // the others make their last step meanwhile
  weight_.finish(round_.last().step);
  set_phase(Phase::finishing, "the budget of samples is spent");
  renew_own_record(now);
  gossip(now);
}

// An estimate may have been too high by a little: the last few are not to make up for it alone.
bool NodeImpl::most_have_finished() const {
  std::size_t done = 0, all = 1;
  for (const auto& [id, entry] : directory_.entries()) {
    const MemberRecord& record = entry.record;
    if (id == state_.id || record.state != MemberState::alive || entry.suspect ||
        record.budget != state_.budget)
      continue;
    const bool finished = record.phase == Phase::finishing || record.phase == Phase::finished;
    done += finished ? 1 : 0;
    all += finished || record.phase == Phase::training || record.phase == Phase::paused ? 1 : 0;
  }
  return 2 * done > all;
}

void NodeImpl::set_budget(const Budget& budget, const std::string& why, Instant now) {
  state_.budget = budget;
  budget_samples_ = budget.samples;
  log(Level::info, "event=budget samples=" + std::to_string(budget.samples) +
                       " revision=" + std::to_string(budget.revision) + " why=\"" + why + "\"");
  persist_due_ = true;
  if (model_ready_) emit(BudgetEffect{budget_samples_});
  renew_own_record(now);
  const bool more = own_samples() + directory_.others_samples() < budget_samples_;
  if (!more || (phase_ != Phase::finishing && phase_ != Phase::finished)) return;
  final_checkpoint_due_ = false;
  set_phase(Phase::training, "the budget has grown");
  renew_own_record(now);
  begin_round_if_due(now);
}

// The later word wins, whoever says it; who gave a command here is told that it is not in force any
// more.
void NodeImpl::hear_budget(const Budget& budget, const std::string& name, NodeId said_by,
                           Instant now) {
  if (budget <= state_.budget || !claims_.admit(budget, said_by, now)) return;
  if (std::exchange(commanded_budget_, false)) {
    overridden_ = "extend: " + name + " (" + to_hex(said_by) + ") says a later budget, of " +
                  std::to_string(budget.samples) + " samples instead of " +
                  std::to_string(state_.budget.samples) + "; extend again if that is wrong";
    log(Level::warning, "event=command-overridden command=extend peer=" + to_hex(said_by) +
                            " samples=" + std::to_string(budget.samples) +
                            " instead_of=" + std::to_string(state_.budget.samples));
  }
  claims_.adopt(budget, false);
  set_budget(budget, "said by " + name, now);
}

std::optional<Error> NodeImpl::extend_budget(Samples more, Instant now) {
  if (state_.job == JobHash{})
    return Error{"no-job", "this node knows no job yet; join the cluster first"};
  const Samples base = std::max(budget_samples_, own_samples() + directory_.others_samples());
  if (more == 0 || more > budget_samples_max - std::min(budget_samples_max, base))
    return Error{"bad-budget", "the budget would be more than " +
                                   std::to_string(budget_samples_max) +
                                   " samples, or no larger; extend by less"};
  const Budget budget{state_.budget.revision + 1, base + more};
  claims_.adopt(budget, true);
  set_budget(budget, "extended by the operator", now);
  commanded_budget_ = true;
  overridden_.clear();
  persist();
  gossip(now);
  return std::nullopt;
}

void NodeImpl::end_early(const std::string& why, Instant now) {
  if (phase_ != Phase::training) return;
  const Samples done = own_samples() + directory_.others_samples();
  if (done >= budget_samples_) return;
  const Budget budget{state_.budget.revision + 1, std::max<Samples>(done, 1)};
  claims_.adopt(budget, true);
  set_budget(budget, why, now);
  gossip(now);
  check_progress(now);
}

}  // namespace gossipd
