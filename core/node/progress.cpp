#include "core/node/progress.h"

#include <algorithm>
#include <utility>

#include "core/membership/plausibility.h"

namespace gossipd {

// The trainer's counter goes on where this node gave an id up.
Samples Progress::under_this_id(Samples counter) const {
  return counter - std::min(counter, former_);
}

void Progress::on_trainer_ready(Samples counter, Samples known, bool lasts) {
  trainer_stands_ = true;
  counter_lasts_ = lasts;
  trained_ = under_this_id(counter);
  if (lasts) {
    beyond_counter_ = 0;
    recovered_ = known;
    return;
  }
  beyond_counter_ = known - std::min(known, trained_);
  recovered_ = 0;
}

void Progress::on_snapshot(Samples counter) {
  trained_ = std::max(trained_, under_this_id(counter));
  if (counter_lasts_) return;
  const Samples known = std::exchange(recovered_, 0);
  beyond_counter_ = std::max(beyond_counter_, known - std::min(known, trained_));
}

bool Progress::recover(Samples known, Step step) {
  if (known <= own()) return false;
  recovered_ = known;
  steps_recovered_ = std::max(steps_recovered_, step);
  return true;
}

// All but what this node's trainer counts itself. What it trained on under a former id is among
// the others'.
Samples Progress::beyond_trainer(Samples others) const {
  const Samples all = others + beyond_counter_;
  return std::max(told_trainer_, all - std::min(all, former_));
}

std::optional<Samples> Progress::news_for_trainer(Samples others) {
  const Samples beyond = beyond_trainer(others);
  if (beyond == told_trainer_) return std::nullopt;
  return told_trainer_ = beyond;
}

bool Progress::has_changed(Samples others, std::uint64_t news, Phase phase) {
  const Seen now{own(), others, budget_, news, phase};
  return std::exchange(seen_, now) != now;
}

bool Progress::is_spent(Samples others) const {
  return in_force() > 0 && trained_ + former_ + beyond_trainer(others) >= in_force();
}

Result<Budget> Progress::extended_by(Samples more, Samples others) const {
  // A node that believed a liar must not make the budget as large as the lie.
  const Samples done = own() + others;
  const Samples base =
      in_force() == 0 ? done : std::clamp(done, in_force(), overshoot_max * in_force());
  if (more == 0)
    return Error{"bad-budget", "0 samples extend nothing; name how many more are to be trained on"};
  if (more > budget_samples_max - std::min(budget_samples_max, base))
    return Error{"bad-budget", "the budget would be more than " +
                                   std::to_string(budget_samples_max) + " samples; extend by less"};
  if (base + more <= done)
    return Error{"bad-budget", "members are counted with " + std::to_string(done) +
                                   " samples, over " + std::to_string(overshoot_max) +
                                   " times the budget of " + std::to_string(in_force()) +
                                   "; if the count is right, extend by more than " +
                                   std::to_string(done - base)};
  return Budget{budget_.revision + 1, base + more};
}

std::optional<Budget> Progress::ended_now(Samples others) const {
  const Samples done = own() + others;
  if (done >= in_force()) return std::nullopt;
  return Budget{budget_.revision + 1, std::max<Samples>(done, 1)};
}

std::optional<std::string> Progress::override_command(const Budget& by, const std::string& name,
                                                      NodeId id) {
  if (!std::exchange(commanded_, false)) return std::nullopt;
  const std::string now = std::to_string(by.samples), before = std::to_string(budget_.samples);
  overridden_ = "extend: " + name + " (" + to_hex(id) + ") says a later budget, of " + now +
                " samples instead of " + before + "; extend again if that is wrong";
  return "event=command-overridden command=extend peer=" + to_hex(id) + " samples=" + now +
         " instead_of=" + before;
}

}  // namespace gossipd
