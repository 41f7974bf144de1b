#include "core/node/speech.h"

#include <algorithm>
#include <cmath>

namespace gossipd {
namespace {

constexpr double finish_mixing = 1.0;
// a joiner of little weight takes nearly all of the other's model
constexpr double mixing_gain_max = 1.0;
// Bits of a delta on a far line, over what makes up for its exchanges being rarer. In the lab, at a
// round trip of 20 steps: 0.2 points of accuracy.
constexpr double far_line_bits = 1.5;

// Of k exchanges at a time each takes a model as its base that the others move meanwhile: a loop
// with a delay of one exchange, x(n+1) = x(n) - G·x(n-1), which forgets fastest near G = 1/4 and
// rings near 1. This keeps the sum of k gains at 1/2.
double gain_in_flight(std::uint32_t k) { return 0.5 / std::max<std::uint32_t>(k, 1); }

void set_gains(Speech& speech, const ExchangePolicy& policy, const Link& link,
               const SpeechContext& context, Instant now) {
  const double own = static_cast<double>(speech.weight);
  const double peer =
      speech.trust * std::clamp(static_cast<double>(link.peer_weight()), 1e-6, context.weight_max);
  double gain = (context.training ? policy.mixing : finish_mixing) *
                gain_in_flight(std::max(speech.in_flight, link.peer_in_flight()));
  if (context.training && policy.age_decay > 0 && context.last.step_seconds > 0)
    gain /= 1.0 + policy.age_decay * link.age_seconds(now) / context.last.step_seconds;
  if (!link.owes_answer()) gain = 0;
  const double self = gain * 2 * peer / (own + peer), other = gain * 2 * own / (own + peer);
  // Both by the same factor, so that what one end gives the other takes.
  const double fits = mixing_gain_max / std::max({self, other, mixing_gain_max});
  speech.gain_self = static_cast<float>(self * fits);
  speech.gain_peer = static_cast<float>(other * fits);
}

}  // namespace

Speech plan_speech(const ExchangePolicy& policy, const Link& link,
                   const Trigger::Decision& decision, const SpeechContext& context, Instant now) {
  const Snapshot& last = context.last;
  Speech speech;
  const bool to_agree = !context.training && !context.interrupted;
  speech.codec = to_agree ? policy.consensus_codec : policy.codec;
  if (!to_agree && policy.codec_by_delay)
    speech.codec = finer(policy.codec, far_line_bits * context.line_periods);
  speech.threshold = decision.threshold;
  speech.entry_cut = context.training ? static_cast<float>(context.entry_cut) : 0.0f;
  speech.threshold_shown = std::isfinite(decision.threshold) && decision.threshold > 0
                               ? decision.threshold
                               : link.counters().threshold;
  speech.in_flight = context.in_flight + 1;
  speech.weight = context.weight;
  if (context.training && policy.correction.loss_trust != LossTrust::off)
    speech.trust = loss_trust(last.loss, link.peer_loss(now), policy.correction.loss_trust_max);
  set_gains(speech, policy, link, context, now);
  speech.step = last.step;
  speech.step_seconds = static_cast<float>(std::clamp(last.step_seconds, 0.0, 1e6));
  speech.loss = last.loss;
  speech.snapshot_at = context.snapshot_at;
  speech.own_step_seconds = last.step_seconds;
  return speech;
}

}  // namespace gossipd
