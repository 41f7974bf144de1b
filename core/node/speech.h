// core/node/speech.h - how a turn is spoken: codec, threshold and gains.
//
// The problem: one exchange by itself averages two models. Several at a time each take a model as
// their base that the others move meanwhile; models weigh differently (newcomers, batches, losses);
// and exchanges on a far line are rarer, so that each delta must say more.
//
// The answer: the gains of a turn follow from the weights of the two ends and from how many
// exchanges either end has under way, so that gain_self·own = gain_peer·peer and the weighted mean
// of the models is kept. An opening moves nothing yet: its gains are 0. Pure.
#pragma once

#include "core/exchange/link.h"
#include "core/exchange/trainer_port.h"
#include "core/exchange/trigger.h"

namespace gossipd {

struct SpeechContext {
  bool training = false;
  bool interrupted = false;     // between two steps of training, for long
  const Snapshot& last;         // stats of the snapshot that is told of …
  Instant snapshot_at{};        // … and when it was taken
  double line_periods = 0;      // the line's round trip, in far_line_steps() own steps
  std::uint32_t in_flight = 0;  // own openings on other links without an answer
  float weight = 1;
  double entry_cut = 0;   // the trigger's
  double weight_max = 1;  // no peer is believed to weigh more
};

[[nodiscard]] Speech plan_speech(const ExchangePolicy&, const Link&, const Trigger::Decision&,
                                 const SpeechContext&, Instant now);

}  // namespace gossipd
