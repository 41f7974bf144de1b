#include "core/node/exchange_round.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/node/outer_momentum.h"

namespace gossipd {
namespace {

constexpr std::size_t floats_per_piece = 65536;
constexpr std::size_t blocks_per_piece_max = 256;
// of training, between two looks at rest: every turn tells of many others
constexpr double rest_pause_steps = 2;
constexpr double rest_pause_max_s = 0.5;
constexpr double rest_pause_unknown_s = 0.02;  // of a node that has made no step

void clear_local_segments(const Schema& schema, std::span<float> values) {
  for (const Segment& segment : schema.segments())
    if (segment.kind == SegmentKind::local)
      std::ranges::fill(values.subspan(segment.offset, segment.size), 0.0f);
}

// Of so many blocks, each whole and with a delta beside it, and what waits for a message to fill.
std::size_t message_bytes_max(std::size_t floats, std::size_t blocks) {
  return 2 * (sizeof(float) * floats + blocks * (turn_record_bytes + turn_hash_bytes)) +
         turn_message_fill_bytes + turn_header_bytes;
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
  if (steps > 0) pace_.stepped();
  last_ = std::move(snapshot);
  if (last_.step_seconds > 0) instead_.step_seconds = last_.step_seconds;
  if (steps > 0) instead_.loss = 0;
  if (instead_.loss > 0) last_.loss = instead_.loss;
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
  // counted from the snapshot: the trainer has made steps since
  update.snapshot_step =
      last_.step + std::clamp<Step>(pace_.steps_to_look(last_.step), 1, steps_between_looks());
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

bool ExchangeRound::has_said_all(std::span<const RoundLink> links,
                                 const Directory& directory) const {
  return std::ranges::all_of(links, [&](const RoundLink& item) {
    const Link& link = item.link;
    if (!link.is_open()) return true;
    if (peer_waits(item, directory)) return false;
    // Once is enough: on a far line heartbeats leave hardly a moment without an open question.
    if (is_last_step(by_link_.settled, item.peer)) return true;
    if (link.awaits_answer()) return false;
    if (is_last_step(by_link_.told, item.peer)) return true;
    // While a round looks, its figures are of the blocks that it has seen.
    return !has_work() && pace_.has_looked() && link.my_turn() &&
           link.counters().change < policy_.consensus_bound;
  });
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
  if (context.is_training() || trainer_runs_) return true;
  const bool may_look = context.now >= pace_.rest_look();
  const Duration rare = policy_.heartbeat * rest_heartbeats;
  const Duration quiet = context.phase == Phase::finished ? rare : policy_.heartbeat / 8;
  // Without a link, too: a broken model is found before a neighbour or a checkpoint takes it.
  if (may_look && context.now - pace_.looked_at() >= rare) return true;
  return std::ranges::any_of(context.links, [&](const RoundLink& item) {
    const Link& link = item.link;
    // Where there is no room, the turn goes on when bytes have left.
    if (!link.my_turn() || (link.speaking() && !has_room(item))) return false;
    if (link.owes_at_once()) return true;
    if (!may_look || looks_again(context.phase)) return may_look;
    // Where a look finds nothing to say, the next one waits as long: at rest the trainer gives the
    // buffer back at once.
    return link.owes_keyframes() || ends_apart(item, context) ||
           peer_waits(item, context.directory) ||
           context.now - std::max(link.spoken_at(), pace_.looked_at()) >= quiet;
  });
}

void ExchangeRound::begin_if_due(const RoundContext& context) {
  forget_asked(context.directory);
  if (stage_ == Stage::waiting && has_reason(context)) begin_round(context);
}

void ExchangeRound::begin_round(const RoundContext& context) {
  if (context.is_training()) {
    pace_.begin_training(last_.step, steps_between_looks(), context.now);
  } else {
    snapshot_at_ = context.now;  // the model stands still, so it is as fresh as now
    pace_.begin_rest(rest_pause(), context.now);
  }
  stage_ = Stage::judge;
  cursor_ = 0;
  pushed_squared_ = 0;
  rest_ = {};
  own_steps_.begin(policy_.correction.future_position > 0);
}

Step ExchangeRound::steps_between_looks() const {
  const Step steps = trigger_.is_urgent() ? 1 : policy_.round_steps;
  return trigger_.periodic() ? std::max<Step>(1, std::min(steps, policy_.period_steps)) : steps;
}

Duration ExchangeRound::rest_pause() const {
  if (instead_.step_seconds <= 0) return from_seconds(rest_pause_unknown_s);
  return from_seconds(std::min(rest_pause_steps * instead_.step_seconds, rest_pause_max_s));
}

// ---- the stages ---------------------------------------------------------------------------------

RoundOutcome ExchangeRound::work(const RoundContext& context) {
  RoundOutcome outcome;
  std::size_t floats = 0;
  while (has_work() && floats < floats_of_piece()) {
    switch (stage_) {
      case Stage::judge: floats += judge(context, outcome); break;
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

std::size_t ExchangeRound::floats_of_piece() const {
  if (workers_ == nullptr) return floats_per_piece;
  return floats_per_piece * workers_->threads();
}

template <typename BlockAhead>
ExchangeRound::Piece ExchangeRound::piece_of(std::size_t left, const RoundContext& context,
                                             BlockAhead block) const {
  const bool one_by_one = workers_ == nullptr || !drift(context).empty();
  const std::size_t most = std::min(left, one_by_one ? 1 : blocks_per_piece_max);
  Piece piece;
  for (; piece.blocks < most && piece.floats < floats_of_piece(); ++piece.blocks)
    piece.floats += schema_.blocks()[block(piece.blocks)].size;
  return piece;
}

ExchangeRound::Piece ExchangeRound::piece_at_cursor(const RoundContext& context) const {
  return piece_of(schema_.blocks().size() - cursor_, context,
                  [this](std::size_t i) { return cursor_ + i; });
}

std::size_t ExchangeRound::judge(const RoundContext& context, RoundOutcome& outcome) {
  const bool judged = taken_back_ || !buffers_.handed_out_known();
  if (!judged && cursor_ < schema_.blocks().size()) {
    const auto [count, floats] = piece_at_cursor(context);
    std::vector<OwnSteps::Norms> norms(count);
    for_each(workers_, count, [&](std::size_t i) {
      const Block& block = schema_.blocks()[cursor_ + i];
      norms[i] = OwnSteps::norms_of(block.of(buffers_.snapshot()),
                                    block.of(std::as_const(buffers_).handed_out()));
    });
    for (const OwnSteps::Norms& of_block : norms) own_steps_.add(cursor_++, of_block);
    return floats;
  }
  const Step before = buffers_.handed_out_step();
  const auto verdict = judged ? OwnSteps::Verdict::believed
                              : own_steps_.judge(last_, last_.step - std::min(last_.step, before));
  if (verdict == OwnSteps::Verdict::broken)
    return break_off(outcome, "a parameter is not finite"), 0;
  if (verdict == OwnSteps::Verdict::take_back) take_back(outcome, context.is_training());
  if (outcome.kind == RoundOutcome::Kind::taken_back) return 0;
  begin_update(context);
  return 0;
}

// The buffer of the handed-out model becomes the update, block by block in take_in().
void ExchangeRound::begin_update(const RoundContext& context) {
  clear_local_segments(schema_, buffers_.handed_out());
  const bool moved =
      buffers_.handed_out_known() && last_.step > buffers_.handed_out_step() && !taken_back_;
  steps_taken_in_ = moved ? last_.step - buffers_.handed_out_step() : 0;
  share_carried_ = moved && context.is_training()
                       ? carried_share(policy_, context.links, by_link_.spoken, last_)
                       : 0;
  taken_in_ = 0;
  buffers_.begin_update(last_.step);
  const bool by_entry = policy_.entry_threshold > 0;
  trigger_.on_round({.at = context.now,
                     .learning_rate = last_.learning_rate,
                     .learning_rate_peak = last_.learning_rate_peak,
                     .usual_step = by_entry ? own_steps_.usual_step(last_.learning_rate_peak) : 0,
                     .looks = !pace_.answers_only()});
  list_links(context);
  next_link(context);
}

// What no look has taken in, because no link had one; 0: nothing is left.
std::size_t ExchangeRound::take_in_rest(const RoundContext& context) {
  const Piece piece = piece_of(schema_.blocks().size() - taken_in_, context,
                               [this](std::size_t i) { return taken_in_ + i; });
  return take_in(context, piece.blocks);
}

std::size_t ExchangeRound::take_in(const RoundContext& context, std::size_t count) {
  const auto take = [&](std::size_t index) {
    const Block& block = schema_.blocks()[index];
    const auto before = block.of(buffers_.update());
    const auto now = block.of(buffers_.snapshot());
    if (steps_taken_in_ > 0) own_steps_.add(index, now, before, steps_taken_in_);
    const double share = block.kind == SegmentKind::parameter ? share_carried_ : 0;
    // `before` becomes the update, which first takes back `share` of the own steps.
    if (share > 0)
      kernels().take_back(before, now, static_cast<float>(share));
    else
      std::ranges::fill(before, 0.0f);
  };
  std::size_t floats = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Block& block = schema_.blocks()[taken_in_ + i];
    floats += block.size;
    if (!context.is_training()) rest_.look(block.of(buffers_.snapshot()));
  }
  for_each(workers_, count, [&](std::size_t i) { take(taken_in_ + i); });
  taken_in_ += count;
  return floats;
}

std::size_t ExchangeRound::look(const RoundContext& context) {
  RoundLink* item = current(context);
  if (item == nullptr) {
    ++at_;
    next_link(context);
    return 0;
  }
  const auto [count, floats] = piece_at_cursor(context);
  // The first link to be looked at finds in the cache what was just taken in.
  if (cursor_ + count > taken_in_) (void)take_in(context, cursor_ + count - taken_in_);
  item->link.look(cursor_, buffers_.snapshot(), buffers_.update(), drift(context), count);
  cursor_ += count;
  if (cursor_ == schema_.blocks().size()) decide(*item, context);
  return floats;
}

std::size_t ExchangeRound::speak(const RoundContext& context, RoundOutcome& outcome) {
  if (taken_in_ < schema_.blocks().size()) return take_in_rest(context);
  RoundLink* item = current(context);
  // A full way out or a lost session pauses the turn; it goes on in a later round.
  if (item == nullptr || !item->link.speaking() || !has_room(*item)) {
    if (item != nullptr && item->link.speaking() && item->connected)
      by_link_.window.pause(item->peer);
    ++at_;
    next_link(context);
    return 0;
  }
  Link& link = item->link;
  auto [count, floats] =
      piece_of(link.blocks_left(), context, [&](std::size_t i) { return link.block_ahead(i); });
  // The way out may become full within the piece, and where it does must not depend on its size.
  if (count > 1 &&
      item->outstanding + message_bytes_max(floats, count) > by_link_.window.of(item->peer))
    count = 1, floats = schema_.blocks()[link.next_block()].size;
  if (floats > 0 &&
      !link.speak(buffers_.snapshot(), buffers_.update(), drift(context), context.now, count)) {
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
  if (taken_in_ < schema_.blocks().size()) return take_in_rest(context);
  const std::size_t size = buffers_.update().size();
  const std::size_t count = std::min(floats_of_piece(), size - cursor_);
  const std::size_t parts = (count + floats_per_piece - 1) / floats_per_piece;
  const auto part = [&](std::size_t i) {
    return std::min(floats_per_piece, count - i * floats_per_piece);
  };
  std::vector<double> pushed_squared(parts);
  for_each(workers_, parts, [&](std::size_t i) {
    pushed_squared[i] = buffers_.apply(cursor_ + i * floats_per_piece, part(i));
  });
  for (std::size_t i = 0; i < parts; ++i) {
    pushed_squared_ += pushed_squared[i];
    if (!context.is_training())
      rest_.move(std::as_const(buffers_).update().subspan(cursor_ + i * floats_per_piece, part(i)));
  }
  cursor_ += count;
  if (cursor_ < size) return count;
  own_steps_.pushed(std::sqrt(pushed_squared_));
  outcome.kind = taken_back_ ? RoundOutcome::Kind::taken_back : RoundOutcome::Kind::handed_back;
  outcome.why = taken_back_.value_or("");
  const bool replace = std::exchange(taken_back_, std::nullopt).has_value();
  if (!context.is_training()) outcome.moved_at_rest = rest_.share();
  outcome.update = update_of(replace ? buffers_.give_model() : buffers_.give_update(), replace,
                             context.is_training());
  for (const NodeId peer : peers_)
    if (RoundLink* item = find_link(context.links, peer); item && item->link.take_offence())
      outcome.offenders.push_back(peer);
  return count;
}

}  // namespace gossipd
