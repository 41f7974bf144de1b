#include "daemon/finish_watch.h"

#include <algorithm>

namespace gossipd {

namespace {

bool is_alive(const MemberView& member) {
  return !member.self &&
         (member.record.state == MemberState::alive || member.record.state == MemberState::suspect);
}

bool may_have_a_model(const MemberView& member) {
  const Phase phase = member.record.phase;
  return is_alive(member) && (phase == Phase::training || phase == Phase::paused ||
                              phase == Phase::finishing || phase == Phase::finished);
}

}  // namespace

std::optional<FinishWatch::End> FinishWatch::look(Phase phase, Step step, const Final& final_model,
                                                  const std::vector<MemberView>& members,
                                                  Instant now) {
  const bool broke = phase == Phase::broken && phase_ != Phase::broken;
  if (broke) breaks_ = step <= broke_at_ + sound_after_steps ? breaks_ + 1 : 1, broke_at_ = step;
  if (phase != phase_ || final_model.on_disk != final_.on_disk) since_ = now;
  phase_ = phase;
  final_ = final_model;
  if (phase == Phase::finished && final_model.on_disk) return look_finished(members, now);
  if (phase == Phase::broken) return look_broken(members, step, now);
  return std::nullopt;
}

std::optional<FinishWatch::End> FinishWatch::look_finished(const std::vector<MemberView>& members,
                                                           Instant now) const {
  std::string unfinished;
  for (const MemberView& member : members)
    if (is_alive(member) && member.record.phase != Phase::finished)
      unfinished += (unfinished.empty() ? "" : ", ") + member.record.name + " (" +
                    to_string(member.record.phase) + ")";
  if (unfinished.empty() && final_.evaluated) return End{false, "the job is finished"};
  if (now - since_ < patience_) return std::nullopt;
  if (unfinished.empty())
    return End{false,
               "the job is finished, and its final model not evaluated: an evaluation takes longer "
               "than membership.finish_cap_ms"};
  return End{false, "the job is finished here, but not by " + unfinished};
}

std::optional<FinishWatch::End> FinishWatch::look_broken(const std::vector<MemberView>& members,
                                                         Step step, Instant now) {
  if (std::ranges::any_of(members, may_have_a_model)) {
    breaks_ = 1;
    since_ = now;
    return std::nullopt;
  }
  const std::string at = " at step " + std::to_string(step) + " and no living member has another";
  if (breaks_ >= breaks_max)
    return End{true, "the model broke " + std::to_string(breaks_) + " times in a row, last" + at};
  if (now - since_ >= patience_) return End{true, "the model broke" + at};
  return std::nullopt;
}

}  // namespace gossipd
