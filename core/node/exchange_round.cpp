#include "core/node/exchange_round.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/node/outer_momentum.h"
#include "core/node/peer_trust.h"
#include "core/node/speech.h"

namespace gossipd {
namespace {

constexpr std::size_t floats_per_piece = 65536;
// of the consensus distance that is asked for: a change still worth saying when the models are to
// agree
constexpr double final_threshold_share = 0.5;
// of training, between two looks of the final exchange: every turn tells of many others
constexpr double final_pause_steps = 2;
constexpr double final_pause_max_s = 0.5;
constexpr int rest_heartbeats = 5;  // between two looks of a node that has nothing to say
constexpr double heartbeat_threshold_share = 0.1;  // at rest; while training it is the trigger's

bool is_training(const RoundContext& context) { return context.phase == Phase::training; }

RoundLink* find_link(std::span<RoundLink> links, NodeId peer) {
  const auto found = std::ranges::find(links, peer, &RoundLink::peer);
  return found == links.end() ? nullptr : &*found;
}

// Openings that will be answered soon. One that has not been answered for a heartbeat beyond the
// round trip is not waited for.
std::uint32_t count_in_flight(const RoundContext& context, Duration heartbeat) {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(context.links, [&](const RoundLink& item) {
        return item.connected && item.link.awaits_answer() &&
               context.now - item.link.spoken_at() < heartbeat + from_seconds(2 * item.rtt_seconds);
      }));
}

bool is_leaving(NodeId peer, const Directory& directory) {
  const Directory::Entry* entry = directory.find(peer);
  return entry != nullptr && entry->record.phase == Phase::leaving;
}

void clear_local_segments(const Schema& schema, std::span<float> values) {
  for (const Segment& segment : schema.segments())
    if (segment.kind == SegmentKind::local)
      std::ranges::fill(values.subspan(segment.offset, segment.size), 0.0f);
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

void send_all(RoundLink& item, RoundOutcome& outcome) {
  for (SharedBytes& message : item.link.take_messages()) {
    item.outstanding += message->size();
    outcome.messages.emplace_back(item.peer, std::move(message));
  }
}

}  // namespace

double consensus_distance(std::span<const RoundLink> links, std::size_t others) {
  double most = 0;
  for (const RoundLink& item : links)
    if (item.link.is_open()) most = std::max(most, item.link.counters().consensus_distance);
  return count_open(links) == 0 && others > 0 ? 1.0 : most;
}

// ---- the trainer --------------------------------------------------------------------------------

void ExchangeRound::prepare(RoundBuffers buffers, Step step) {
  GOSSIPD_ASSERT(stage_ == Stage::resting && buffers.base.size() == schema_.floats());
  buffers_.prepare(std::move(buffers), step);
  last_.step = step;
}

Update ExchangeRound::begin(bool training) {
  GOSSIPD_ASSERT(stage_ == Stage::resting);
  return update_of(buffers_.give_zeros(), false, training);
}

Update ExchangeRound::adopt(bool training) {
  GOSSIPD_ASSERT(stage_ == Stage::resting);
  last_.finite = true;
  own_steps_.forget();
  return update_of(buffers_.adopt(last_.step), true, training);
}

void ExchangeRound::on_snapshot(Snapshot snapshot, std::size_t open_links, Instant now) {
  GOSSIPD_ASSERT(stage_ == Stage::with_trainer && snapshot.model.size() == schema_.floats());
  buffers_.take_snapshot(std::exchange(snapshot.model, {}));
  const Step steps = snapshot.step > last_.step ? snapshot.step - last_.step : 0;
  if (open_links > 0) linked_steps_ += steps;
  last_ = std::move(snapshot);
  snapshot_at_ = now;
  stage_ = Stage::waiting;
}

RoundOutcome ExchangeRound::on_not_finite(bool training) {
  GOSSIPD_ASSERT(stage_ == Stage::waiting && !last_.finite);
  RoundOutcome outcome;
  std::optional<std::span<const float>> before;
  if (buffers_.handed_out_known()) before = buffers_.handed_out();
  if (own_steps_.judge_not_finite(before) == OwnSteps::Verdict::take_back)
    take_back(outcome, training);
  else
    break_off(outcome, "the trainer met a value that is not finite");
  return outcome;
}

Update ExchangeRound::update_of(std::vector<float> values, bool replace, bool training) {
  stage_ = Stage::with_trainer;
  trainer_runs_ = training;
  recalled_ = false;
  Update update;
  update.values = std::move(values);
  update.replace = replace;
  update.steps_until_snapshot =
      std::clamp<Step>(pace_.steps_to_look(last_.step), 1, steps_between_looks());
  update.training = training;
  return update;
}

void ExchangeRound::take_back(RoundOutcome& outcome, bool training) {
  const StepGuard& guard = own_steps_.guard();
  outcome.why = std::string("reason=") + to_string(own_steps_.last_jump()) +
                " step=" + std::to_string(last_.step) +
                " back_to=" + std::to_string(buffers_.handed_out_step()) +
                " in_a_row=" + std::to_string(guard.jumps_in_a_row()) +
                " in_all=" + std::to_string(guard.jumps()) +
                " loss=" + std::to_string(last_.loss_worst);
  last_.finite = true;
  // A neighbour may wait for the former model: the round goes on with it.
  if (guard.jumps_in_a_row() > 1) {
    buffers_.undo_steps();
    taken_back_ = std::exchange(outcome.why, {});
    return;
  }
  outcome.kind = RoundOutcome::Kind::taken_back;
  outcome.update = update_of(buffers_.give_back_handed_out(last_.step), true, training);
}

void ExchangeRound::break_off(RoundOutcome& outcome, const char* why) {
  outcome.kind = RoundOutcome::Kind::broken;
  outcome.why = why;
  last_.finite = false;
  taken_back_.reset();
  buffers_.abandon();
  stage_ = Stage::resting;
}

bool ExchangeRound::recalls(std::span<const RoundLink> links) {
  if (stage_ != Stage::with_trainer || !trainer_runs_ || recalled_) return false;
  recalled_ = std::ranges::any_of(links, [](const RoundLink& item) {
    return item.link.owes_at_once() && !item.link.speaking();
  });
  return recalled_;
}

// ---- when a round begins ------------------------------------------------------------------------

bool ExchangeRound::has_reason(const RoundContext& context) const {
  if (is_training(context) || trainer_runs_) return true;
  const bool final_exchange = context.phase == Phase::finishing;
  const Duration rare = policy_.heartbeat * rest_heartbeats;
  const Duration quiet = context.phase == Phase::finished ? rare : policy_.heartbeat / 8;
  // Without a link, too: a broken model is found before a neighbour or a checkpoint takes it.
  if (context.now - pace_.looked_at() >= rare) return true;
  return std::ranges::any_of(context.links, [&](const RoundLink& item) {
    const Link& link = item.link;
    // Where there is no room, the turn goes on when bytes have left.
    if (!link.my_turn() || (link.speaking() && !has_room(item))) return false;
    if (link.owes_at_once()) return true;
    if (final_exchange) return context.now >= pace_.final_look();
    // Where a look finds nothing to say, the next one waits as long: at rest the trainer gives the
    // buffer back at once.
    return link.owes_keyframes() ||
           context.now - std::max(link.spoken_at(), pace_.looked_at()) >= quiet;
  });
}

void ExchangeRound::begin_if_due(const RoundContext& context) {
  if (stage_ == Stage::waiting && has_reason(context)) begin_round(context);
}

void ExchangeRound::begin_round(const RoundContext& context) {
  if (is_training(context)) {
    pace_.begin_training(last_.step, steps_between_looks(), context.now);
  } else {
    snapshot_at_ = context.now;  // the model stands still, so it is as fresh as now
    pace_.begin_rest(context.phase == Phase::finishing, final_pause(), context.now);
  }
  stage_ = Stage::judge;
  cursor_ = 0;
  pushed_squared_ = 0;
  rest_ = {};
  own_steps_.begin(policy_.correction.future_position > 0);
}

Step ExchangeRound::steps_between_looks() const {
  const Step steps = policy_.round_steps;
  return trigger_.periodic() ? std::max<Step>(1, std::min(steps, policy_.period_steps)) : steps;
}

Duration ExchangeRound::final_pause() const {
  return from_seconds(std::clamp(final_pause_steps * last_.step_seconds, 0.0, final_pause_max_s));
}

// ---- the stages ---------------------------------------------------------------------------------

RoundOutcome ExchangeRound::work(const RoundContext& context) {
  RoundOutcome outcome;
  std::size_t floats = 0;
  while (has_work() && floats < floats_per_piece) {
    switch (stage_) {
      case Stage::judge: floats += judge(context, outcome); break;
      case Stage::take_in: floats += take_in(context); break;
      case Stage::look: floats += look(context); break;
      case Stage::speak: floats += speak(context, outcome); break;
      case Stage::hand_back: floats += hand_back(context, outcome); break;
      case Stage::resting:
      case Stage::with_trainer:
      case Stage::waiting: break;
    }
  }
  return outcome;
}

std::size_t ExchangeRound::judge(const RoundContext& context, RoundOutcome& outcome) {
  const bool judged = taken_back_ || !buffers_.handed_out_known();
  if (!judged && cursor_ < schema_.blocks().size()) {
    const Block& block = schema_.blocks()[cursor_];
    own_steps_.measure(cursor_++, block.of(buffers_.snapshot()),
                       block.of(std::as_const(buffers_).handed_out()));
    return block.size;
  }
  const Step before = buffers_.handed_out_step();
  const auto verdict = judged ? OwnSteps::Verdict::believed
                              : own_steps_.judge(last_, last_.step - std::min(last_.step, before));
  if (verdict == OwnSteps::Verdict::broken)
    return break_off(outcome, "a parameter is not finite"), 0;
  if (verdict == OwnSteps::Verdict::take_back) take_back(outcome, is_training(context));
  if (outcome.kind == RoundOutcome::Kind::taken_back) return 0;
  // The buffer of the handed-out model becomes the update; take_in clears the rest of it.
  clear_local_segments(schema_, buffers_.handed_out());
  stage_ = Stage::take_in;
  cursor_ = 0;
  return 0;
}

std::size_t ExchangeRound::take_in(const RoundContext& context) {
  std::size_t floats = 0;
  if (cursor_ < schema_.blocks().size()) {
    const Block& block = schema_.blocks()[cursor_];
    const auto before = block.of(buffers_.handed_out());
    const auto now = block.of(buffers_.snapshot());
    if (!is_training(context)) rest_.look(now);
    double share = 0;
    if (buffers_.handed_out_known() && last_.step > buffers_.handed_out_step() && !taken_back_) {
      own_steps_.add(cursor_, now, before, last_.step - buffers_.handed_out_step());
      if (block.kind == SegmentKind::parameter && is_training(context))
        share = carried_share(policy_, context.links, spoken_, last_);
    }
    // `before` becomes the update, which first takes back `share` of the own steps.
    if (share > 0)
      kernels().take_back(before, now, static_cast<float>(share));
    else
      std::ranges::fill(before, 0.0f);
    floats = block.size;
    ++cursor_;
  }
  if (cursor_ < schema_.blocks().size()) return floats;
  buffers_.begin_update(last_.step);
  trigger_.on_round({.at = context.now,
                     .learning_rate = last_.learning_rate,
                     .learning_rate_peak = last_.learning_rate_peak});
  list_links(context);
  next_link(context);
  return floats;
}

std::size_t ExchangeRound::look(const RoundContext& context) {
  RoundLink* item = current(context);
  if (item == nullptr) {
    ++at_;
    next_link(context);
    return 0;
  }
  const std::size_t floats = schema_.blocks()[cursor_].size;
  item->link.look(cursor_, buffers_.snapshot(), buffers_.update(), drift(context));
  if (++cursor_ == schema_.blocks().size()) decide(*item, context);
  return floats;
}

std::size_t ExchangeRound::speak(const RoundContext& context, RoundOutcome& outcome) {
  RoundLink* item = current(context);
  // A full way out or a lost session pauses the turn; it goes on in a later round.
  if (item == nullptr || !item->link.speaking() || !has_room(*item)) {
    ++at_;
    next_link(context);
    return 0;
  }
  Link& link = item->link;
  const std::size_t floats =
      schema_.blocks().empty() ? 0 : schema_.blocks()[link.next_block()].size;
  if (floats > 0 &&
      !link.speak(buffers_.snapshot(), buffers_.update(), drift(context), context.now)) {
    break_off(outcome, "a parameter is not finite");
    return floats;
  }
  const bool ends = link.spoken_all();
  if (ends) end_turn(*item, context);
  send_all(*item, outcome);
  if (!ends) return floats;
  ++at_;
  next_link(context);
  return floats;
}

std::size_t ExchangeRound::hand_back(const RoundContext& context, RoundOutcome& outcome) {
  const std::size_t size = buffers_.update().size();
  const std::size_t count = std::min(floats_per_piece, size - cursor_);
  pushed_squared_ += buffers_.apply(cursor_, count);
  if (!is_training(context)) rest_.move(std::as_const(buffers_).update().subspan(cursor_, count));
  cursor_ += count;
  if (cursor_ < size) return count;
  own_steps_.pushed(std::sqrt(pushed_squared_));
  outcome.kind = taken_back_ ? RoundOutcome::Kind::taken_back : RoundOutcome::Kind::handed_back;
  outcome.why = taken_back_.value_or("");
  const bool replace = std::exchange(taken_back_, std::nullopt).has_value();
  if (!is_training(context)) outcome.moved_at_rest = rest_.share();
  outcome.update = update_of(replace ? buffers_.give_model() : buffers_.give_update(), replace,
                             is_training(context));
  for (const NodeId peer : peers_)
    if (RoundLink* item = find_link(context.links, peer); item && item->link.take_offence())
      outcome.offenders.push_back(peer);
  return count;
}

// ---- on which links -----------------------------------------------------------------------------

void ExchangeRound::list_links(const RoundContext& context) {
  peers_.clear();
  at_ = 0;
  opening_.reset();
  std::erase_if(spoken_,
                [&](const auto& item) { return find_link(context.links, item.first) == nullptr; });
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
  return item.connected && item.outstanding <= policy_.bulk_window_bytes;
}

void ExchangeRound::next_link(const RoundContext& context) {
  cursor_ = 0;
  for (; at_ < peers_.size(); ++at_) {
    RoundLink* item = current(context);
    if (item == nullptr) continue;
    stage_ = item->link.speaking() ? Stage::speak : Stage::look;
    if (stage_ == Stage::speak) return;
    const LossOf loss_of = [&](NodeId member) { return said_loss(member, last_.loss, context); };
    const bool trusted =
        !is_training(context) ||
        is_trusted(item->peer, policy_.guard.loss_ratio_max, context.directory, loss_of);
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

// ---- what is said -------------------------------------------------------------------------------

double ExchangeRound::final_threshold() const {
  return final_threshold_share * policy_.consensus_bound;
}

Step ExchangeRound::spoken_step(NodeId peer) const {
  const auto found = spoken_.find(peer);
  return found == spoken_.end() ? 0 : found->second;
}

Trigger::Decision ExchangeRound::decision_for(const RoundLink& item,
                                              const RoundContext& context) const {
  const Link& link = item.link;
  const Duration heartbeat =
      policy_.heartbeat * (context.phase == Phase::finished ? rest_heartbeats : 1);
  const bool due = context.now - link.spoken_at() >= heartbeat;
  if (!is_training(context)) {
    const double least = final_threshold();
    const bool changed = link.owes_keyframes() || link.largest_change() > least;
    const bool apart = context.phase == Phase::finishing &&
                       link.counters().consensus_distance >= policy_.consensus_bound;
    // A node that only ever answers heartbeats is never due itself.
    const bool thorough = due || (context.phase == Phase::finished && link.owes_answer());
    return {changed || apart || due || link.owes_answer() || context.phase == Phase::leaving,
            thorough ? least * heartbeat_threshold_share : least};
  }
  if (link.owes_answer()) return {true, trigger_.answer_threshold()};
  Trigger::LinkState state;
  state.block_change = link.largest_change();
  state.owes_keyframes = link.owes_keyframes();
  state.due = due;
  state.steps_since_spoken = last_.step - std::min(last_.step, spoken_step(item.peer));
  return trigger_.decide(state);
}

void ExchangeRound::decide(RoundLink& item, const RoundContext& context) {
  Link& link = item.link;
  link.counters().threshold = is_training(context) ? trigger_.threshold() : final_threshold();
  const Trigger::Decision decision = decision_for(item, context);
  const bool first = link.counters().turns_spoken == 0;
  if (first || link.owes_answer() || link.owes_keyframes() || context.phase == Phase::leaving ||
      is_leaving(item.peer, context.directory))
    return begin_turn(item, decision, context);
  const double change = link.counters().change;
  if (pace_.answers_only()) {
    // Its own look comes later.
  } else if (decision.speak && (!opening_ || change > opening_->change)) {
    if (opening_)
      if (RoundLink* other = find_link(context.links, opening_->peer))
        ++other->link.counters().turns_suppressed;
    opening_ = Opening{item.peer, decision, change};
  } else {
    ++link.counters().turns_suppressed;
  }
  ++at_;
  next_link(context);
}

void ExchangeRound::begin_turn(RoundLink& item, const Trigger::Decision& decision,
                               const RoundContext& context) {
  const SpeechContext speech{.training = is_training(context),
                             .last = last_,
                             .snapshot_at = snapshot_at_,
                             .line_periods = line_periods(policy_, item, last_.step_seconds),
                             .in_flight = count_in_flight(context, policy_.heartbeat),
                             .weight = context.weight,
                             .weight_max = context.weight_max};
  item.link.begin(plan_speech(policy_, item.link, decision, speech, context.now), context.now);
  stage_ = Stage::speak;
  cursor_ = 0;
}

void ExchangeRound::end_turn(RoundLink& item, const RoundContext& context) {
  const bool first = item.link.counters().turns_spoken == 0;
  item.link.end(context.now);
  if (is_training(context) && !first) trigger_.on_spoken(item.link.bytes_of_turn());
  Step& spoken = spoken_[item.peer] = last_.step;
  if (!first || !trigger_.periodic()) return;
  // Links of one node take turns at their periods, as if this one had been spoken on a part of it
  // ago.
  const std::size_t links = std::max<std::size_t>(count_open(context.links), 1);
  spoken -= std::min(spoken, policy_.period_steps * (at_ % links) / links);
}

std::span<const float> ExchangeRound::drift(const RoundContext& context) const {
  return is_training(context) && policy_.correction.future_position > 0 ? own_steps_.drift()
                                                                        : std::span<const float>();
}

OuterStep ExchangeRound::outer_step(const RoundLink& item, const RoundContext& context) const {
  if (!is_training(context)) return {};
  return {momentum_share(policy_, item, count_open(context.links), last_.step_seconds),
          own_steps_.travelled()};
}

}  // namespace gossipd
