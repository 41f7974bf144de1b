// core/node/look_pace.h - when a node looks at its model for something to say.
//
// The problem: a round costs a pass over the model on every link, and a look too early finds
// exchanges half-way. Yet what a neighbour has opened is to be answered at the next snapshot.
//
// The answer: a *look* is a round that may open exchanges; every other round only carries on what
// is under way. While the node trains there are at least `round_steps` own steps between two looks;
// at rest and in the final exchange a time, in which turns of other members can arrive. Pure; core
// strand.
#pragma once

#include <algorithm>

#include "core/base/types.h"

namespace gossipd {

class LookPace {
 public:
  // A round begins at own step `step`; the next look comes `steps` later at the earliest. Returns
  // whether this one is a look.
  bool begin_training(Step step, Step steps, Instant now);
  // A round of a node that makes no steps; the next look comes `pause` later at the earliest.
  bool begin_rest(Duration pause, Instant now);
  // No step follows: the final exchange begins, with the first look after `pause`.
  void stand_still(Duration pause, Instant now) { rest_look_ = now + pause, looked_since_ = false; }
  // The model has made a step: what has been found before is no longer so.
  void stepped() { looked_since_ = false; }
  [[nodiscard]] Instant rest_look() const { return rest_look_; }
  // A look at rest has begun since the node stands still and since its last step.
  [[nodiscard]] bool has_looked() const { return looked_since_; }

  // This round opens nothing.
  [[nodiscard]] bool answers_only() const { return answers_only_; }
  // When the last look began.
  [[nodiscard]] Instant looked_at() const { return looked_at_; }
  // Own steps from `step` to the next look; 0: it is due.
  [[nodiscard]] Step steps_to_look(Step step) const {
    return look_step_ - std::min(look_step_, step);
  }

 private:
  bool note(bool looks, Instant now);

  bool answers_only_ = false;  // of the round that began last
  Step look_step_ = 0;         // of the next look while training; 0: at once
  Instant looked_at_{};
  Instant rest_look_{};  // of the next look while the node makes no steps
  bool looked_since_ = false;
};

}  // namespace gossipd
