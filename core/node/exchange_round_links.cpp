// On which links a round does something, and what it says there.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/node/exchange_round.h"
#include "core/node/outer_momentum.h"
#include "core/node/speech.h"

namespace gossipd {
namespace {

// of the consensus distance that is asked for: a change still worth saying when the models are to
// agree
constexpr double final_threshold_share = 0.5;
constexpr double every_block = -1;  // as a threshold
// Of a node at rest that nobody takes from: it takes 0.95 of a neighbour's model.
constexpr float distrusted_weight = 0.05f;
constexpr double taken_apart = 0.01;  // then its model is so close to that one, and as good
constexpr double heartbeat_threshold_share = 0.1;  // at rest; while training it is the trigger's

// Openings that will be answered soon. One that has not been answered for a heartbeat beyond the
// round trip is not waited for.
std::uint32_t count_in_flight(const RoundContext& context, Duration heartbeat) {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(context.links, [&](const RoundLink& item) {
        return item.connected && item.link.awaits_answer() &&
               context.now - item.link.spoken_at() < heartbeat + from_seconds(2 * item.rtt_seconds);
      }));
}

bool is_in(Phase phase, NodeId peer, const Directory& directory) {
  const Directory::Entry* entry = directory.find(peer);
  return entry != nullptr && entry->record.phase == phase;
}

// As a member says it; a link brings it sooner than gossip.
double said_loss(NodeId member, double own_loss, const RoundContext& context) {
  if (member == context.directory.self().id) return own_loss;
  const RoundLink* item = find_link(context.links, member);
  if (item != nullptr && item->link.is_open() && item->link.loss_said() > 0)
    return item->link.loss_said();
  const Directory::Entry* entry = context.directory.find(member);
  return entry == nullptr ? 0 : entry->record.loss;
}

}  // namespace

// ---- on which links -----------------------------------------------------------------------------

void ExchangeRound::list_links(const RoundContext& context) {
  peers_.clear();
  at_ = 0;
  opening_.reset();
  const auto is_listed = [&](NodeId peer) { return find_link(context.links, peer) != nullptr; };
  for (auto* steps : {&by_link_.spoken, &by_link_.told, &by_link_.settled, &by_link_.asked})
    std::erase_if(*steps, [&](const auto& item) { return !is_listed(item.first); });
  by_link_.window.forget_unless(is_listed);
  for (const RoundLink& item : context.links)
    by_link_.window.begin_round(item.peer, item.outstanding, schema_.floats());
  for (const RoundLink& item : context.links)
    if (item.link.my_turn() && (!pace_.answers_only() || item.link.owes_at_once()))
      peers_.push_back(item.peer);
  // The peer that is spoken to first hears the least mixed model, so they take turns at that.
  const std::size_t first = peers_.empty() ? 0 : context.random.below(peers_.size());
  std::rotate(peers_.begin(), peers_.begin() + static_cast<std::ptrdiff_t>(first), peers_.end());
}

// The link at work, while it is open and has the turn.
RoundLink* ExchangeRound::current(const RoundContext& context) const {
  RoundLink* item = find_link(context.links, peers_[at_]);
  return item != nullptr && item->link.my_turn() ? item : nullptr;
}

bool ExchangeRound::has_room(const RoundLink& item) const {
  return item.connected && item.outstanding <= by_link_.window.of(item.peer);
}

void ExchangeRound::next_link(const RoundContext& context) {
  cursor_ = 0;
  for (; at_ < peers_.size(); ++at_) {
    RoundLink* item = current(context);
    if (item == nullptr) continue;
    stage_ = item->link.speaking() ? Stage::speak : Stage::look;
    if (stage_ == Stage::speak) return;
    const bool trusted = is_trusted(item->peer, policy_.guard.loss_ratio_max,
                                    !context.is_training(), context.directory, losses(context));
    item->link.look_begin(drift(context), last_.step_seconds, outer_step(*item, context),
                          context.now, trusted);
    if (schema_.blocks().empty()) decide(*item, context);
    return;
  }
  stage_ = Stage::hand_back;
  if (!opening_) return;
  // All have been looked at and answered: now the exchange that was found worth opening.
  const Opening opening = *std::exchange(opening_, std::nullopt);
  RoundLink* item = find_link(context.links, opening.peer);
  if (item == nullptr || !item->link.my_turn()) return;
  peers_.push_back(opening.peer);
  begin_turn(*item, opening.decision, context);
}

// ---- whom neighbours take from ------------------------------------------------------------------

LossOf ExchangeRound::losses(const RoundContext& context) const {
  return [this, &context](NodeId member) { return said_loss(member, last_.loss, context); };
}

bool ExchangeRound::is_distrusted(const RoundContext& context) const {
  return !context.is_training() &&
         is_distrusted_at_rest(policy_.guard.loss_ratio_max, context.directory, losses(context));
}

// A node that nobody takes from has taken a neighbour's model: its loss is that one's now.
void ExchangeRound::note_taken(RoundLink& item, const RoundContext& context) {
  const std::optional<float> gain = item.link.take_gain();
  if (!gain) return;
  // What newcomers take of each other is not the cluster's model.
  if (item.link.peer_weight() > 2 * context.weight) taken_ += static_cast<double>(*gain);
  if (!is_distrusted(context)) return;
  const double rest = 1 - static_cast<double>(*gain);
  if (rest * item.link.counters().consensus_distance > taken_apart) return;
  const double loss = said_loss(item.peer, last_.loss, context);
  if (loss > 0 && loss < last_.loss) instead_.loss = last_.loss = loss;
}

// ---- what is said -------------------------------------------------------------------------------

double ExchangeRound::final_threshold() const {
  return final_threshold_share * policy_.consensus_bound;
}

// This node makes no steps for a while, and the peer's model is no final one.
bool ExchangeRound::pauses_among_training(const RoundLink& item,
                                          const RoundContext& context) const {
  return context.is_interrupted() && !is_in(Phase::finishing, item.peer, context.directory) &&
         !is_in(Phase::finished, item.peer, context.directory);
}

// Between two own turns on a link while this node trains.
Duration ExchangeRound::usual_spacing() const {
  const double spacing = static_cast<double>(policy_.period_steps) * instead_.step_seconds;
  return spacing > 0 && spacing < seconds(policy_.heartbeat) ? from_seconds(spacing)
                                                             : policy_.heartbeat;
}

Step ExchangeRound::steps_since_spoken(NodeId peer) const {
  const auto found = by_link_.spoken.find(peer);
  return last_.step - (found == by_link_.spoken.end() ? 0 : std::min(last_.step, found->second));
}

// One of the two waits with its final model until they are one.
bool ExchangeRound::ends_apart(const RoundLink& item, const RoundContext& context) const {
  return item.link.counters().consensus_distance >= policy_.consensus_bound &&
         (context.phase == Phase::finishing ||
          is_in(Phase::finishing, item.peer, context.directory));
}

// A peer that has made its last step may not have the turn to tell of it, so the end that has it
// opens an exchange, once for each count of steps that the peer claims.
bool ExchangeRound::peer_waits(const RoundLink& item, const Directory& directory) const {
  const Directory::Entry* entry = directory.find(item.peer);
  if (entry == nullptr || entry->record.phase != Phase::finishing) return false;
  const auto asked = by_link_.asked.find(item.peer);
  return asked == by_link_.asked.end() || asked->second != entry->record.step;
}

// One that has finished and is finishing again has been moved and tells once more.
void ExchangeRound::forget_asked(const Directory& directory) {
  std::erase_if(by_link_.asked,
                [&](const auto& item) { return !is_in(Phase::finishing, item.first, directory); });
}

Trigger::Decision ExchangeRound::decision_for(const RoundLink& item, const RoundContext& context) {
  const Link& link = item.link;
  const Duration heartbeat =
      policy_.heartbeat * (context.phase == Phase::finished ? rest_heartbeats : 1);
  const bool due = context.now - link.spoken_at() >= heartbeat;
  if (!context.is_training()) {
    const double least = final_threshold();
    const bool early =
        pauses_among_training(item, context) && context.now - link.spoken_at() < usual_spacing();
    const bool changed = link.owes_keyframes() || (!early && link.largest_change() > least);
    const bool apart = ends_apart(item, context);
    // Gains below a half leave a rest of the difference, and blocks without news are not mixed.
    if (apart && !changed) return {true, every_block};
    // A node that only ever answers heartbeats is never due itself.
    const bool thorough = due || (context.phase == Phase::finished && link.owes_answer());
    return {changed || apart || due || link.owes_answer() || context.phase == Phase::leaving ||
                peer_waits(item, context.directory),
            thorough ? least * heartbeat_threshold_share : least};
  }
  if (link.owes_answer()) return {true, trigger_.answer_threshold()};
  Trigger::LinkState state;
  state.block_change = link.largest_change();
  state.change = link.counters().change;
  state.owes_keyframes = link.owes_keyframes();
  state.due = due;
  state.steps_since_spoken = steps_since_spoken(item.peer);
  if (!trigger_.periodic())
    state.steps_since_spoken = static_cast<Step>(static_cast<double>(state.steps_since_spoken) *
                                                 peer_pace(item, last_.step_seconds));
  return trigger_.decide(state);
}

void ExchangeRound::decide(RoundLink& item, const RoundContext& context) {
  Link& link = item.link;
  note_taken(item, context);
  if (!context.is_training() && is_last_step(by_link_.told, item.peer) && !link.awaits_answer())
    by_link_.settled[item.peer] = last_.step;
  link.counters().threshold = context.is_training() ? trigger_.threshold() : final_threshold();
  const Trigger::Decision decision = decision_for(item, context);
  const bool first = link.turns_spoken() == 0;
  const bool parts =
      context.phase == Phase::leaving || is_in(Phase::leaving, item.peer, context.directory);
  if (first || link.owes_answer() || link.owes_keyframes() || (parts && !pace_.answers_only()))
    return begin_turn(item, decision, context);
  const double urgency =
      context.is_training() ? link.counters().change : seconds(context.now - link.spoken_at());
  if (pace_.answers_only()) {
    // Its own look comes later.
  } else if (decision.speak && (!opening_ || urgency > opening_->urgency)) {
    if (opening_)
      if (RoundLink* other = find_link(context.links, opening_->peer))
        ++other->link.counters().turns_suppressed;
    opening_ = Opening{item.peer, decision, urgency};
  } else {
    ++link.counters().turns_suppressed;
  }
  ++at_;
  next_link(context);
}

void ExchangeRound::begin_turn(RoundLink& item, const Trigger::Decision& decision,
                               const RoundContext& context) {
  const SpeechContext speech{.training = context.is_training(),
                             .interrupted = pauses_among_training(item, context),
                             .last = last_,
                             .snapshot_at = snapshot_at_,
                             .line_periods = line_periods(policy_, item, last_.step_seconds),
                             .in_flight = count_in_flight(context, policy_.heartbeat),
                             .weight = is_distrusted(context)
                                           ? std::min(context.weight, distrusted_weight)
                                           : context.weight,
                             .entry_cut = trigger_.entry_cut(),
                             .weight_max = context.weight_max};
  item.link.begin(plan_speech(policy_, item.link, decision, speech, context.now), context.now);
  if (peer_waits(item, context.directory)) {
    by_link_.settled.erase(item.peer);
    by_link_.asked[item.peer] = context.directory.find(item.peer)->record.step;
  }
  stage_ = Stage::speak;
  cursor_ = 0;
}

void ExchangeRound::end_turn(RoundLink& item, const RoundContext& context) {
  const bool first = item.link.turns_spoken() == 0;
  item.link.end(context.now);
  note_taken(item, context);
  if (context.is_training() && !first) trigger_.on_spoken(item.link.bytes_of_turn());
  if (!context.is_training()) by_link_.told[item.peer] = item.link.step_told();
  Step& spoken = by_link_.spoken[item.peer] = last_.step;
  if (!first || !trigger_.periodic()) return;
  // Links of one node take turns at their periods, as if this one had been spoken on a part of it
  // ago.
  const std::size_t links = std::max<std::size_t>(count_open(context.links), 1);
  spoken -= std::min(spoken, policy_.period_steps * (at_ % links) / links);
}

std::span<const float> ExchangeRound::drift(const RoundContext& context) const {
  return context.is_training() && policy_.correction.future_position > 0 ? own_steps_.drift()
                                                                         : std::span<const float>();
}

OuterStep ExchangeRound::outer_step(const RoundLink& item, const RoundContext& context) const {
  if (!context.is_training()) return {};
  const bool brings =
      brings_momentum(policy_, item, steps_since_spoken(item.peer), last_.step_seconds);
  return {
      .share =
          brings ? momentum_share(policy_, item, count_open(context.links), last_.step_seconds) : 0,
      .travelled = own_steps_.travelled(),
      .fastest = fastest_pace(context.links, last_.step_seconds)};
}

}  // namespace gossipd
