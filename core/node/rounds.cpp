// The exchange: every snapshot of the model starts a round. In it the node takes in how far it
// moved by itself, then speaks on every link whose turn it has, and hands the sum of all
// transfers back to the trainer as one additive update.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/correction/curvature.h"
#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr std::size_t floats_per_piece = 65536;
// of the consensus distance that is asked for: a change still worth saying when models are to agree
constexpr double finish_threshold_share = 0.5;
constexpr double finish_mixing = 1.0;
// of training, between two rounds of the final exchange: every turn tells of many others
constexpr double finish_pace_steps = 2;
constexpr double finish_pace_max_s = 0.5;
// a joiner of little weight takes nearly all of the other's model
constexpr double mixing_gain_max = 1.0;
constexpr double heartbeat_threshold_share = 0.1;  // at rest; while training it is the trigger's
// Bits of a delta on a far line, over what makes up for its exchanges being rarer. In the lab, at a
// round trip of 20 steps: 0.2 points of accuracy.
constexpr double far_line_bits = 1.5;

// One exchange by itself averages the two models. Of k at a time each takes a model as its base
// that the others move meanwhile: a loop with a delay of one exchange, x(n+1) = x(n) - G·x(n-1),
// which forgets fastest near G = 1/4 and rings near 1. This keeps the sum of k gains at 1/2.
double gain_in_flight(std::uint32_t k) { return 0.5 / std::max<std::uint32_t>(k, 1); }

}  // namespace

void NodeImpl::on_snapshot(Snapshot snapshot, Instant now) {
  GOSSIPD_ASSERT(model_ready_ && trainer_has_buffer_ && stage_ == RoundStage::idle);
  GOSSIPD_ASSERT(snapshot.model.size() == schema_.floats());
  trainer_has_buffer_ = false;
  incoming_ = std::move(snapshot.model);
  const Step steps = snapshot.step > last_.step ? snapshot.step - last_.step : 0;
  link_steps_ += steps * open_links();
  trained_samples_ = std::max(trained_samples_, under_this_id(snapshot.samples));
  snapshot.model = {};
  last_ = std::move(snapshot);
  snapshot_at_ = now;
  balance();
  if (!last_.finite) {
    if (take_back_broken()) return;
    own_model_broken("the trainer met a value that is not finite");
    adopt(now);
    return;
  }
  stage_ = RoundStage::waiting;
  check_progress(now);
  if (final_checkpoint_due_ && phase_ == Phase::finished) write_final();
  if (round_has_reason(now)) start_round(now);
}

// While the node trains every snapshot is looked at. At rest a round begins when a link has
// something to do.
bool NodeImpl::round_has_reason(Instant now) const {
  if (stage_ != RoundStage::waiting) return false;
  if (steps_allowed() || trainer_running_ || !last_.finite) return true;
  for (const auto& [id, neighbour] : neighbours_) {
    if (!neighbour.link || !neighbour.link->my_turn()) continue;
    const Link& link = *neighbour.link;
    if (link.speaking() && !has_room(neighbour)) continue;  // on_bulk_sent() goes on
    if (link.owes_at_once()) return true;
    if (phase_ == Phase::finishing) {
      if (now >= finish_round_at_) return true;
      continue;
    }
    if (link.owes_keyframes()) return true;
    const Duration quiet =
        phase_ == Phase::finished ? config_.exchange.heartbeat * 5 : config_.exchange.heartbeat / 8;
    // Where a look finds nothing to say, the next one waits as long: at rest the trainer gives the
    // buffer back at once.
    if (now - std::max(link.spoken_at(), looked_at_) >= quiet) return true;
  }
  return false;
}

// On the neighbour's way out.
bool NodeImpl::has_room(const Neighbour& neighbour) const {
  const auto session = sessions_.find(neighbour.session);
  return session != sessions_.end() &&
         session->second.bulk_outstanding <= config_.exchange.bulk_window_bytes;
}

void NodeImpl::start_round(Instant now) {
  GOSSIPD_ASSERT(stage_ == RoundStage::waiting);
  if (steps_allowed()) {
    answers_only_ = last_.step < look_step_;
    if (!answers_only_) look_step_ = last_.step + round_steps();
  } else {
    snapshot_at_ = now;  // the model stands still, so it is as fresh as now
    answers_only_ = phase_ == Phase::finishing && now < finish_round_at_;
    if (!answers_only_) finish_round_at_ = now + finish_pace();
  }
  if (!answers_only_) looked_at_ = now;
  stage_ = RoundStage::judge;
  own_move_ = {};
  own_moved_.resize(schema_.blocks().size());
  cursor_ = 0;
  if (config_.exchange.enabled &&
      (config_.exchange.future_position > 0 || trigger_.needs_drift()) &&
      drift_.size() != incoming_.size())
    drift_.assign(incoming_.size(), 0.0f);
  if (config_.exchange.enabled) travelled_.resize(schema_.blocks().size());
}

void NodeImpl::zero_local_segments(std::vector<float>& values) const {
  for (const Segment& segment : schema_.segments())
    if (segment.kind == SegmentKind::local && values.size() >= segment.offset + segment.size)
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(segment.offset), segment.size, 0.0f);
}

bool NodeImpl::has_work() const { return stage_ > RoundStage::waiting; }

void NodeImpl::work(Instant now) {
  std::size_t floats = 0;
  while (has_work() && floats < floats_per_piece) {
    switch (stage_) {
      case RoundStage::judge: {
        if (base_valid_ && cursor_ < schema_.blocks().size()) {
          measure_own_step(cursor_);
          floats += schema_.blocks()[cursor_++].size;
          break;
        }
        if (base_valid_ && guards_steps() && !believe_own_step()) {
          if (stage_ == RoundStage::idle) return;  // taken back
          own_model_broken("a parameter is not finite");
          adopt(now);
          return;
        }
        zero_local_segments(base_);  // base becomes the update; take_in clears the rest of it
        stage_ = RoundStage::take_in;
        cursor_ = 0;
        break;
      }
      case RoundStage::take_in: {
        const bool moved = base_valid_ && last_.step > base_step_;
        if (cursor_ < schema_.blocks().size()) {
          const Block& block = schema_.blocks()[cursor_];
          const auto before = block.of(std::span<float>(base_));
          const auto current = block.of(std::span<const float>(incoming_));
          if (!steps_allowed()) final_.look(current);
          if (moved && !drift_.empty()) {
            const auto steps = static_cast<double>(last_.step - base_step_);
            const double blend = 1.0 - std::exp(-steps / config_.exchange.drift_window_steps);
            kernels().drift(block.of(std::span<float>(drift_)), current, before,
                            static_cast<float>(1.0 / steps), static_cast<float>(blend));
          }
          if (moved && !travelled_.empty()) travelled_[cursor_] += own_moved_[cursor_];
          std::fill(before.begin(), before.end(), 0.0f);
          floats += block.size;
          ++cursor_;
        }
        if (cursor_ < schema_.blocks().size()) break;
        std::swap(base_, incoming_);  // base: the snapshot; incoming: the update, still zero
        base_valid_ = true;
        base_step_ = last_.step;
        trigger_round(now);
        round_links_.clear();
        for (const auto& [id, neighbour] : neighbours_)
          if (neighbour.link && neighbour.link->my_turn() &&
              (!answers_only_ || neighbour.link->owes_at_once()))
            round_links_.push_back(id);
        // Whoever speaks first in a round is heard with the least mixed model: take turns at that,
        // too.
        if (!round_links_.empty())
          std::rotate(round_links_.begin(),
                      round_links_.begin() +
                          static_cast<std::ptrdiff_t>(random_.below(round_links_.size())),
                      round_links_.end());
        round_link_ = 0;
        opening_.reset();
        next_link(now);
        break;
      }
      case RoundStage::look: {
        Neighbour& neighbour = neighbours_[round_links_[round_link_]];
        if (!neighbour.link || !neighbour.link->my_turn()) {
          ++round_link_;
          next_link(now);
          break;
        }
        neighbour.link->look(cursor_, base_, incoming_, drift());
        floats += schema_.blocks()[cursor_].size;
        if (++cursor_ == schema_.blocks().size()) decide(neighbour, now);
        break;
      }
      case RoundStage::speak: {
        Neighbour& neighbour = neighbours_[round_links_[round_link_]];
        // A full way out or a lost session pauses the turn; it goes on in a later round.
        if (!neighbour.link || !neighbour.link->speaking() || !neighbour.link->my_turn() ||
            !has_room(neighbour)) {
          ++round_link_;
          next_link(now);
          break;
        }
        Link& link = *neighbour.link;
        floats += schema_.blocks()[link.next_block()].size;
        if (!link.speak(base_, incoming_, drift(), now)) {
          own_model_broken("a parameter is not finite");
          adopt(now);
          return;
        }
        if (link.spoken_all()) {
          end_speech(neighbour, now);
        } else {
          flush_link(neighbour);
        }
        break;
      }
      case RoundStage::hand_back: {
        const std::size_t count = std::min<std::size_t>(floats_per_piece, base_.size() - cursor_);
        pushed_squared_ +=
            kernels().axpy(std::span(base_).subspan(cursor_, count),
                           std::span<const float>(incoming_).subspan(cursor_, count), 1.0f);
        if (!steps_allowed())
          final_.move(std::span<const float>(incoming_).subspan(cursor_, count));
        cursor_ += count;
        floats += count;
        if (cursor_ < base_.size()) break;
        finish_round();
        rest_offenders(now);
        break;
      }
      case RoundStage::idle:
      case RoundStage::waiting: return;
    }
  }
}

void NodeImpl::next_link(Instant now) {
  cursor_ = 0;
  for (; round_link_ < round_links_.size(); ++round_link_) {
    Neighbour& neighbour = neighbours_[round_links_[round_link_]];
    if (!neighbour.link || !neighbour.link->my_turn()) continue;
    if (neighbour.link->speaking()) {
      stage_ = RoundStage::speak;
      return;
    }
    neighbour.link->look_begin(drift(), last_.step_seconds, outer_step(round_links_[round_link_]),
                               now, is_trusted(round_links_[round_link_]));
    stage_ = RoundStage::look;
    if (schema_.blocks().empty()) decide(neighbour, now);
    return;
  }
  if (!opening_) {
    stage_ = RoundStage::hand_back;
    return;
  }
  // All have been looked at and answered: now the exchange that was found worth opening.
  const Opening opening = *std::exchange(opening_, std::nullopt);
  Neighbour& neighbour = neighbours_[opening.peer];
  if (!neighbour.link || !neighbour.link->my_turn()) return next_link(now);
  round_links_.push_back(opening.peer);
  speak_on(neighbour, opening.decision, now);
}

// The model of this round is in base_, the drift is up to date.
void NodeImpl::trigger_round(Instant now) {
  Trigger::Round round{now, last_.learning_rate, last_.learning_rate_peak, 0, 1, last_.warming_up};
  if (std::exchange(consensus_is_new_, false)) round.consensus_distance = own_consensus_distance();
  if (trigger_.needs_drift() && drift_.size() == base_.size() && !base_.empty()) {
    const double drift = mean_square(drift_), model = mean_square(base_);
    round.drift = model > 0 ? std::sqrt(drift / model) : 0;
  }
  trigger_.on_round(round);
}

bool NodeImpl::is_leaving(NodeId peer) const {
  const auto found = directory_.entries().find(peer);
  return found != directory_.entries().end() && found->second.record.phase == Phase::leaving;
}

// Openings that will be answered soon; who has not answered for a heartbeat beyond the round trip
// is not waited for.
std::uint32_t NodeImpl::in_flight(Instant now) {
  std::uint32_t count = 0;
  for (const auto& [id, neighbour] : neighbours_) {
    const Session* session = session_of(id);
    if (session == nullptr || !neighbour.link || !neighbour.link->awaits_answer()) continue;
    if (now - neighbour.link->spoken_at() <
        config_.exchange.heartbeat + from_seconds(2 * session->round_trip.smoothed_seconds()))
      ++count;
  }
  return count;
}

Duration NodeImpl::finish_pace() const {
  return from_seconds(std::clamp(finish_pace_steps * last_.step_seconds, 0.0, finish_pace_max_s));
}

double NodeImpl::finish_threshold() const {
  return finish_threshold_share * config_.exchange.consensus_bound;
}

Trigger::Decision NodeImpl::decision_for(const Neighbour& neighbour, Instant now) const {
  const Link& link = *neighbour.link;
  const bool due =
      now - link.spoken_at() >=
      (phase_ == Phase::finished ? config_.exchange.heartbeat * 5 : config_.exchange.heartbeat);
  if (!steps_allowed()) {
    const double least = finish_threshold();
    const bool changed = link.owes_keyframes() || link.largest_change() > least;
    const bool apart = phase_ == Phase::finishing &&
                       link.counters().consensus_distance >= config_.exchange.consensus_bound;
    return {changed || apart || due || link.owes_answer() || phase_ == Phase::leaving,
            due ? least * heartbeat_threshold_share : least};
  }
  if (link.owes_answer()) return {true, trigger_.answer_threshold()};
  Trigger::LinkState state;
  state.block_change = link.largest_change();
  state.model_change = link.counters().change;
  state.owes_keyframes = link.owes_keyframes();
  state.due = due;
  state.steps_since_spoken = last_.step - std::min(last_.step, neighbour.spoken_step);
  return trigger_.decide(state);
}

void NodeImpl::decide(Neighbour& neighbour, Instant now) {
  Link& link = *neighbour.link;
  link.counters().threshold = steps_allowed() ? trigger_.threshold() : finish_threshold();
  const Trigger::Decision decision = decision_for(neighbour, now);
  const bool first = link.counters().turns_spoken == 0;
  const bool at_once = first || link.owes_answer() || link.owes_keyframes() ||
                       phase_ == Phase::leaving || is_leaving(round_links_[round_link_]);
  if (at_once) return speak_on(neighbour, decision, now);
  // One opening a round, where most has changed: an exchange takes the models as they are, so the
  // next one had better wait for its outcome.
  const double change = link.counters().change;
  if (answers_only_) {
    // Its own look comes later.
  } else if (decision.speak && (!opening_ || change > opening_->change)) {
    if (opening_) ++neighbours_[opening_->peer].link->counters().turns_suppressed;
    opening_ = Opening{round_links_[round_link_], decision, change};
  } else {
    ++link.counters().turns_suppressed;
  }
  ++round_link_;
  next_link(now);
}

void NodeImpl::speak_on(Neighbour& neighbour, const Trigger::Decision& decision, Instant now) {
  Link& link = *neighbour.link;
  link.begin(speech_for(link, round_trip_periods(round_links_[round_link_]), decision, now), now);
  stage_ = RoundStage::speak;
  cursor_ = 0;
  if (schema_.blocks().empty()) end_speech(neighbour, now);
}

void NodeImpl::end_speech(Neighbour& neighbour, Instant now) {
  Link& link = *neighbour.link;
  const bool first = link.counters().turns_spoken == 0;
  link.end(now);
  if (steps_allowed() && !first) trigger_.on_spoken(link.bytes_of_turn());
  neighbour.spoken_step = last_.step;
  consensus_is_new_ = true;
  if (first && trigger_.periodic()) {
    // Links of one node take turns at their periods, as if this one had been spoken on a part of it
    // ago.
    const std::size_t links = std::max<std::size_t>(open_links(), 1);
    neighbour.spoken_step -=
        std::min(neighbour.spoken_step, trigger_.period() * (round_link_ % links) / links);
  }
  flush_link(neighbour);
  ++round_link_;
  next_link(now);
}

void NodeImpl::balance() {
  if (!config_.balance.enabled || !steps_allowed()) return;
  const BatchBalancer::Pace pace{.step = last_.step,
                                 .step_seconds = last_.step_seconds,
                                 .batch = last_.batch,
                                 .job_batch = job_batch()};
  if (balancer_.on_snapshot(pace, others_that_train()))
    log(Level::debug, "event=batch from=" + std::to_string(last_.batch) +
                          " to=" + std::to_string(balancer_.wanted()));
}

// By the speeds that the records of the members tell.
BatchBalancer::Others NodeImpl::others_that_train() const {
  BatchBalancer::Others others;
  for (const auto& [id, entry] : directory_.entries()) {
    const MemberRecord& record = entry.record;
    if (id == state_.id || entry.suspect || record.state != MemberState::alive ||
        record.phase != Phase::training || record.samples_per_second <= 0)
      continue;
    ++others.members;
    others.samples_per_second += std::min(record.samples_per_second, claims_.rate_max());
  }
  return others;
}

float NodeImpl::own_weight() const {
  const ExchangePolicy& policy = config_.exchange;
  if (!steps_allowed()) return late_ ? static_cast<float>(policy.joiner_weight) : 1.0f;
  const double by_batch = balancer_.weighs_mixing() ? balancer_.share(job_batch()) : 1.0;
  if (!ramping_) return static_cast<float>(by_batch);
  const double steps = static_cast<double>(last_.step - std::min(last_.step, joined_at_step_));
  const double share = policy.joiner_steps == 0
                           ? 1.0
                           : std::min(1.0, steps / static_cast<double>(policy.joiner_steps));
  return static_cast<float>(by_batch *
                            (policy.joiner_weight + (1.0 - policy.joiner_weight) * share));
}

std::span<const float> NodeImpl::drift() const {
  return steps_allowed() && config_.exchange.future_position > 0 ? std::span<const float>(drift_)
                                                                 : std::span<const float>();
}

// What the line's round trip keeps the exchanges of a link apart, over period_steps. Its shortest
// one: a line that is slow because it is narrow is not far, and larger deltas would make it slower
// still.
double NodeImpl::round_trip_periods(NodeId peer) {
  const Session* session = session_of(peer);
  if (session == nullptr || last_.step_seconds <= 0) return 0;
  return session->round_trip.least_seconds() / last_.step_seconds /
         static_cast<double>(config_.exchange.period_steps);
}

OuterStep NodeImpl::outer_step(NodeId peer) {
  if (!steps_allowed()) return {};
  const double momentum = outer_momentum_for(config_.exchange, round_trip_periods(peer));
  return {momentum, momentum / static_cast<double>(std::max<std::size_t>(open_links(), 1)),
          travelled_};
}

Speech NodeImpl::speech_for(const Link& link, double periods, const Trigger::Decision& decision,
                            Instant now) {
  const ExchangePolicy& policy = config_.exchange;
  const bool fine = !steps_allowed();
  Speech speech;
  speech.codec = fine ? policy.consensus_codec : policy.codec;
  if (!fine && policy.codec_by_delay) speech.codec = finer(policy.codec, far_line_bits * periods);
  speech.threshold = decision.threshold;
  speech.threshold_shown = std::isfinite(decision.threshold) && decision.threshold > 0
                               ? decision.threshold
                               : link.counters().threshold;
  speech.in_flight = in_flight(now) + 1;
  speech.weight = own_weight();
  const double own = static_cast<double>(speech.weight);
  if (!fine && policy.loss_trust != LossTrust::off)
    speech.trust = loss_trust(last_.loss, link.peer_loss(now), policy.loss_trust_max);
  // A weight is a minibatch over the job's, or a joiner's share of that.
  const double heaviest = balancer_.share_max(job_batch());
  const double peer =
      speech.trust * std::clamp(static_cast<double>(link.peer_weight()), 1e-6, heaviest);
  double gain = (fine ? finish_mixing : policy.mixing) *
                gain_in_flight(std::max(speech.in_flight, link.peer_in_flight()));
  if (!fine && policy.age_decay > 0 && last_.step_seconds > 0)
    gain /= 1.0 + policy.age_decay * link.age_seconds(now) / last_.step_seconds;
  if (!link.owes_answer()) gain = 0;
  speech.gain_self = static_cast<float>(std::min(mixing_gain_max, gain * 2 * peer / (own + peer)));
  speech.gain_peer = static_cast<float>(std::min(mixing_gain_max, gain * 2 * own / (own + peer)));
  speech.step = last_.step;
  speech.step_seconds = static_cast<float>(std::clamp(last_.step_seconds, 0.0, 1e6));
  speech.loss = last_.loss;
  speech.snapshot_at = snapshot_at_;
  speech.own_step_seconds = last_.step_seconds;
  return speech;
}

void NodeImpl::finish_round() {
  if (!steps_allowed()) final_.end_round();
  guard_.pushed(std::sqrt(std::exchange(pushed_squared_, 0.0)));
  hand_out(std::move(incoming_), false);
}

// The models of an exchange grow apart while it waits for the next look, so it does not wait for
// it.
void NodeImpl::recall_if_owing() {
  if (!trainer_has_buffer_ || !trainer_running_ || recalled_) return;
  for (const auto& [id, neighbour] : neighbours_) {
    if (!neighbour.link || !neighbour.link->owes_at_once() || neighbour.link->speaking()) continue;
    recalled_ = true;
    return emit(RequestSnapshotEffect{});
  }
}

// Own steps between two looks.
Step NodeImpl::round_steps() const {
  const Step steps = config_.exchange.round_steps;
  return trigger_.periodic() ? std::max<Step>(1, std::min(steps, trigger_.period())) : steps;
}

void NodeImpl::hand_out(std::vector<float> values, bool replace) {
  stage_ = RoundStage::idle;
  trainer_has_buffer_ = true;
  trainer_running_ = steps_allowed();
  incoming_ = {};
  recalled_ = false;
  Update update;
  update.values = std::move(values);
  update.replace = replace;
  update.steps_until_snapshot =
      std::clamp<Step>(look_step_ - std::min(look_step_, last_.step), 1, round_steps());
  update.training = trainer_running_;
  update.batch = balancer_.wanted();
  if (balancer_.weighs_rate()) update.rate_scale = balancer_.share(job_batch());
  emit(UpdateEffect{std::move(update)});
  recall_if_owing();
}

void NodeImpl::own_model_broken(const std::string& where) {
  stage_ = RoundStage::idle;
  last_.finite = false;
  // Who leaves has nothing to say any more, but it still leaves; who is paused is so again with
  // another model.
  if (phase_ == Phase::broken || phase_ == Phase::leaving || phase_ == Phase::left) return;
  paused_when_broken_ = phase_ == Phase::paused;
  rest_broken();
  set_phase(Phase::broken,
            where + "; nothing is published until a neighbour's model has been taken");
}

}  // namespace gossipd
