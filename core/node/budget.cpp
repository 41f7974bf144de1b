// How many samples the cluster has trained on, and its budget: as the job says, until an operator
// extends it or a node finds that training leads nowhere.
#include <algorithm>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

// of the budget: from here on a node ends when most others have
constexpr double most_finished_share = 0.9;

}  // namespace

// The sum that schedule and budget follow, with an estimate of what members have trained on since
// their last word: at the age of a word, a second and more, eight quick nodes would overshoot a
// short job's budget by a tenth.
Samples Conductor::others_estimate(Instant now) const {
  return directory_.others_samples() +
         directory_.samples_since(now, {.own_rate = progress_.rate(),
                                        .own = progress_.own(),
                                        .rate_max = claims_.rate_max()});
}

void Conductor::publish_progress(Instant now) {
  if (!source_.trainer_stands() || may_know_another_job()) return;
  if (const auto others = progress_.news_for_trainer(others_estimate(now)))
    emit(ProgressEffect{*others});
}

// Both look at every member, so they are left out where nothing has changed.
void Conductor::settle_samples(Instant now) {
  if (!progress_.has_changed(directory_.others_samples(), directory_.news(), phase())) return;
  publish_progress(now);
  check_progress(now);
}

// The budget is the cluster's: the first node to notice that it is spent stops stepping.
void Conductor::check_progress(Instant now) {
  if (progress_.in_force() == 0 || !life_.is_stepping_or_idle()) return;
  if (!progress_.is_spent(others_estimate(now)) && !most_have_finished()) return;
  life_.finish_by(now + config_.membership.finish_cap);
  round_.stand_still(round_.rest_pause(), now);  // the others make their last step meanwhile
  weight_.finish(config_.exchange, round_.last().step, round_.taken());
  set_phase(Phase::finishing, "the budget of samples is spent");
}

// An estimate may have been too high by a little: the last few are not to make up for it alone.
// It asks only members that it has met, and only near the end: members can be invented.
bool Conductor::most_have_finished() const {
  const Samples done_samples = progress_.own() + directory_.others_samples();
  if (static_cast<double>(done_samples) <
      most_finished_share * static_cast<double>(progress_.in_force()))
    return false;
  std::size_t done = 0, all = 1;
  for (const auto& [id, entry] : directory_.entries()) {
    const MemberRecord& record = entry.record;
    if (id == state_.id || !entry.met || record.state != MemberState::alive || entry.suspect ||
        record.budget != progress_.budget())
      continue;
    const bool finished = record.phase == Phase::finishing || record.phase == Phase::finished;
    done += finished ? 1 : 0;
    all += finished || Lifecycle::is_stepping_or_idle(record.phase) ? 1 : 0;
  }
  return 2 * done > all;
}

void Conductor::set_budget(const Budget& budget, const std::string& why) {
  progress_.set(budget);
  log(Level::info, "event=budget samples=" + std::to_string(budget.samples) +
                       " revision=" + std::to_string(budget.revision) + " why=" + log_quoted(why));
  persistence_.request();
  const bool goes_on = life_.is_at_end() && progress_.leaves_room(directory_.others_samples());
  if (source_.trainer_stands() && !may_know_another_job())
    emit(BudgetEffect{progress_.in_force(), goes_on});
  if (!goes_on) return;
  final_.cancel();
  set_phase(Phase::training, "the budget has grown");
}

// The later budget wins, from any member.
void Conductor::hear_budget(const Budget& budget, const std::string& name, NodeId said_by,
                            Instant now) {
  if (budget <= progress_.budget() || !claims_.admit(budget, said_by, now)) return;
  if (const auto words = progress_.override_command(budget, name, said_by))
    log(Level::warning, *words);
  claims_.adopt(budget, false);
  set_budget(budget, "said by " + name);
}

std::optional<Error> Conductor::extend_budget(Samples more) {
  if (auto error = why_no_job()) return error;
  // Nobody would hear of it before this node joins again.
  if (life_.is_going())
    return Error{"left", "this node leaves the cluster; extend the job on another member"};
  if (auto error = why_not_during_change()) return error;
  const Result<Budget> budget = progress_.extended_by(more, directory_.others_samples());
  if (!budget) return budget.error();
  claims_.adopt(*budget, true);
  set_budget(*budget, "extended by the operator");
  progress_.note_command();
  persistence_.urge();
  return std::nullopt;
}

void Conductor::end_early(const std::string& why) {
  if (!life_.is_training()) return;
  const std::optional<Budget> budget = progress_.ended_now(directory_.others_samples());
  if (!budget) return;
  claims_.adopt(*budget, true);
  set_budget(*budget, why);
}

}  // namespace gossipd
