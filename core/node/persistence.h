// core/node/persistence.h - when a node's state is written to disk, and what is in it.
//
// The problem: a restart must not count less than the node has published, must know whom to ask,
// and must be able to judge claims by its own speed; but a disk may take seconds, and most of this
// changes all the time.
//
// The answer: what must be on disk before a word is said is written at once (urge(), and
// durable_claims.h); all else at the next tick after request(), or every `period`. A state that is
// replaced before it is written is no loss, since each holds everything. Members can be invented,
// and a restart dials those that it finds, so of members that this node has never met at most
// `unmet_max` are written; other members tell the rest. Pure; core strand.
#pragma once

#include "core/membership/directory.h"
#include "core/node.h"

namespace gossipd {

class Persistence {
 public:
  static constexpr Duration period = std::chrono::seconds(5);
  static constexpr std::size_t unmet_max = 256;

  // `down_for` and `unsure_for` as the last state had them.
  Persistence(Instant now, Duration down_for, Duration unsure_for)
      : started_(now), unsure_for_(unsure_for + down_for) {}

  // Something that a restart should know has changed.
  void request() { requested_ = true; }
  // It is to be written as soon as this event has been dealt with.
  void urge() { urgent_ = true; }
  [[nodiscard]] bool is_urgent() const { return urgent_; }
  // At a tick: it is time to write.
  [[nodiscard]] bool is_due(Instant now);
  // `state` with the members, and for how long others may know better. Nothing is due after it.
  [[nodiscard]] NodeState to_write(NodeState state, const Directory& directory, Instant now);

 private:
  const Instant started_;
  const Duration unsure_for_;  // what others trained in that time they may have to tell again
  Instant next_{};             // written at this tick, requested or not
  bool requested_ = false;
  bool urgent_ = false;
};

}  // namespace gossipd
