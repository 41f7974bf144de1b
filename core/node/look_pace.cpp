#include "core/node/look_pace.h"

namespace gossipd {

bool LookPace::begin_training(Step step, Step steps, Instant now) {
  const bool looks = step >= look_step_;
  if (looks) look_step_ = step + steps;
  return note(looks, now);
}

bool LookPace::begin_rest(Duration pause, Instant now) {
  const bool looks = now >= rest_look_;
  if (looks) rest_look_ = now + pause, looked_since_ = true;
  return note(looks, now);
}

bool LookPace::note(bool looks, Instant now) {
  answers_only_ = !looks;
  if (looks) looked_at_ = now;
  return looks;
}

}  // namespace gossipd
