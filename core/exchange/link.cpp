#include "core/exchange/link.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/correction/curvature.h"

namespace gossipd {
namespace {

constexpr float keyframe_magnitude_max = 1e6f;
constexpr std::size_t small_block_floats = 512;     // below it a sparse codec's overhead eats its gain
constexpr double outer_reach = 2;                   // times as far as own steps have led, outer momentum goes at most
constexpr double norm_squared_min = 1e-30;          // a divisor is at least this
constexpr double reference_rms_min = 1e-3;          // a block that is nearly zero has no meaningful relative change

Reject to_reject(ApplyError error) {
  switch (error) {
    case ApplyError::not_finite: return Reject::not_finite;
    case ApplyError::too_large: return Reject::absurd_magnitude;
    default: return Reject::malformed;
  }
}

std::uint64_t mix_nonces(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t mixed = (std::min(a, b) * 0x9e3779b97f4a7c15ull) ^ (std::max(a, b) + 0xd1b54a32d192ed03ull);
  return mixed == 0 ? 1 : mixed;
}

double relative(const ChangeNorms& norms, std::size_t floats) {
  const double floor = reference_rms_min * reference_rms_min * static_cast<double>(floats);
  return std::sqrt(norms.change_squared / std::max(norms.reference_squared, floor));
}

void add(ChangeNorms& sum, const ChangeNorms& norms) {
  sum.change_squared += norms.change_squared;
  sum.reference_squared += norms.reference_squared;
}

double ratio(const ChangeNorms& norms) { return std::sqrt(norms.change_squared / std::max(norms.reference_squared, norm_squared_min)); }

// Turns alternate, so the last one an end heard is the last one spoken or the one two before it.
bool reached(std::uint32_t spoken, std::uint32_t heard) {
  return heard == spoken || heard + 2 == spoken || (spoken == 1 && heard == 0);
}

}  // namespace

Link::Link(NodeId self, NodeId peer, const Schema& schema, const ExchangePolicy& policy)
    : self_(self), peer_(peer), schema_(schema), policy_(policy), peer_loss_(make_forecaster(policy.loss_trust)) {}

void Link::describe(Ready& ready) const {
  ready.conversation = conversation_;
  ready.spoken = spoken_;
  ready.heard = heard_;
}

bool Link::open(const Ready& mine, const Ready& theirs, Instant) {
  GOSSIPD_ASSERT(!open_ && !awaiting_state_);
  const bool remembered = conversation_ != 0 && mine.conversation == conversation_ && theirs.conversation == conversation_ &&
                          mine.has_model && theirs.has_model && schema_.blocks().size() <= replica_state_blocks_max &&
                          reached(mine.spoken, theirs.heard) && reached(theirs.spoken, mine.heard) &&
                          (mine.spoken == theirs.heard || theirs.spoken == mine.heard);
  if (remembered) {
    awaiting_state_ = true;
    resend_turn_ = theirs.heard < mine.spoken;
    return true;
  }
  conversation_ = mix_nonces(mine.nonce, theirs.nonce);
  start_fresh(mine.has_model == theirs.has_model ? raw(self_) < raw(peer_) : mine.has_model);
  return false;
}

void Link::start_fresh(bool i_speak_first) {
  published_.assign(schema_.floats(), 0.0f);
  received_.assign(schema_.floats(), 0.0f);
  blocks_.assign(schema_.blocks().size(), BlockState{});
  received_valid_ = 0;
  keyframes_owed_ = blocks_.size();
  open_ = true;
  awaiting_state_ = false;
  my_turn_ = i_speak_first;
  reopened_ = false;
  speaking_ = hearing_ = heard_opening_ = spoke_opening_ = false;
  spoken_ = heard_ = hearing_turn_ = 0;
  heard_gain_ = 0;
  kept_.clear();
  opened_.clear();
  heard_records_.clear();
  outbox_.clear();
  resync_.clear();
  message_.clear();
  message_records_ = 0;
  received_once_ = published_once_ = false;
  peer_loss_ = make_forecaster(policy_.loss_trust);  // its steps may count from anew
}

std::uint64_t Link::hash_of(Replica which, std::size_t index) const {
  const Block& block = schema_.blocks()[index];
  const auto own = block.of(published()), theirs = block.of(received());
  if (!blocks_[index].to_draw || speaking_ || resend_turn_) return kernels().hash(which == Replica::published ? own : theirs);
  std::vector<float> a(own.begin(), own.end()), b(theirs.begin(), theirs.end());
  kernels().draw_together(a, b, draw_own_, draw_their_);
  return kernels().hash(which == Replica::published ? a : b);
}

ReplicaState Link::replica_state() const {
  ReplicaState state;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const BlockState& block = blocks_[i];
    state.blocks.push_back(block.received_valid
                               ? ReplicaState::Held{block.received, hash_of(Replica::received, i)}
                               : ReplicaState::Held{});
  }
  return state;
}

std::optional<Reject> Link::on_replica_state(std::span<const std::byte> message, Instant now) {
  ReplicaState state;
  if (!awaiting_state_) return Reject::out_of_turn;
  if (const auto reject = decode_replica_state(message, schema_, state)) return reject;
  awaiting_state_ = false;
  open_ = true;
  hearing_ = false;
  reopened_ = true;
  outbox_.clear();
  message_.clear();
  message_records_ = 0;

  std::vector<Kept> again;
  for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
    BlockState& block = blocks_[i];
    const ReplicaState::Held& held = state.blocks[i];
    if (block.keyframe_owed) continue;
    if (held.version == block.published) {
      if (held.hash != hash_of(Replica::published, i)) set_keyframe_owed(block, true);
      continue;
    }
    // Every version between what is held and what was published must still be kept.
    std::vector<Kept> chain;
    for (const Kept& kept : kept_)
      if (kept.block == i && kept.version > held.version) chain.push_back(kept);
    if (held.version != 0 && held.version + chain.size() == block.published)
      again.insert(again.end(), chain.begin(), chain.end());
    else
      set_keyframe_owed(block, true);
  }
  kept_ = std::move(again);

  // The last turn was not heard to its end, or we are in the middle of one: say the lost part again.
  const bool unheard = std::exchange(resend_turn_, false);
  if (speaking_ || unheard) {
    std::vector<Kept> resend;
    resend.swap(kept_);
    for (Kept& kept : resend) {
      if (message_.empty()) message_.resize(turn_header_bytes);
      message_.insert(message_.end(), kept.record.begin(), kept.record.end());
      ++message_records_;
      ++counters_.deltas_resent;
      kept_.push_back(std::move(kept));
      if (message_.size() >= turn_message_fill_bytes) flush(false, now);
    }
    if (unheard) {
      for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
        if (!blocks_[i].keyframe_owed) continue;
        append(i, Codec{CodecId::keyframe, 0}, schema_.blocks()[i].of(published()));
        if (message_.size() >= turn_message_fill_bytes) flush(false, now);
      }
      flush(true, now);
    }
  }
  return std::nullopt;
}

void Link::close() {
  open_ = false;
  awaiting_state_ = false;
  outbox_.clear();
  message_.clear();
  message_records_ = 0;
  hearing_ = false;
}

void Link::forget() {
  close();
  conversation_ = 0;
  spoken_ = heard_ = 0;
  published_ = {};
  received_ = {};
  blocks_.clear();
  kept_ = {};
  opened_ = {};
  heard_records_ = {};
  received_valid_ = keyframes_owed_ = 0;
  my_turn_ = speaking_ = false;
}

void Link::set_keyframe_owed(BlockState& block, bool owed) {
  if (block.keyframe_owed == owed) return;
  block.keyframe_owed = owed;
  owed ? ++keyframes_owed_ : --keyframes_owed_;
}

void Link::set_received_valid(BlockState& block, bool valid) {
  if (block.received_valid == valid) return;
  block.received_valid = valid;
  valid ? ++received_valid_ : --received_valid_;
}

void Link::refuse(std::size_t block, Reject reason) {
  ++counters_.refused[raw(reason)];
  set_received_valid(blocks_[block], false);
  set_keyframe_owed(blocks_[block], true);  // so that both ends know that it is not mixed in this exchange
  if (resync_.size() < resync_blocks_max) resync_.push_back(static_cast<std::uint32_t>(block));
}

std::optional<Reject> Link::on_turn(std::span<const std::byte> message, double rtt_seconds, Instant now) {
  TurnHeader header;
  std::vector<TurnRecord> records;
  std::optional<Reject> reject = decode_turn(message, schema_, header, records);
  if (!reject && (!open_ || my_turn_ || header.turn != std::max(spoken_, heard_) + 1)) reject = Reject::out_of_turn;
  if (reject) {
    ++counters_.refused[raw(*reject)];
    return reject;
  }
  counters_.bytes_received += message.size();
  if (!hearing_) {
    hearing_ = true;
    // The answer has begun, so the other end holds all we said.
    if (policy_.outer_momentum > 0 && !kept_.empty()) opened_ = std::move(kept_);
    kept_.clear();
  }
  if (hearing_turn_ != header.turn) {
    hearing_turn_ = header.turn;
    heard_records_.clear();
    for (BlockState& block : blocks_) block.heard = block.heard_whole = false;
  }
  for (const TurnRecord& record : records) apply_record(record);
  peer_weight_ = header.weight;
  peer_in_flight_ = std::max<std::uint32_t>(header.in_flight, 1);
  peer_step_seconds_ = header.step_seconds;
  hearing_at_ = now - from_seconds(rtt_seconds / 2 + static_cast<double>(header.snapshot_age_seconds));
  if (!header.last) return std::nullopt;
  if (peer_loss_) peer_loss_->observe(header.step, static_cast<double>(header.loss));
  hearing_ = reopened_ = false;
  heard_ = header.turn;
  heard_gain_ = header.gain_listener;
  heard_blocks_ = 0;
  heard_opening_ = header.gain_speaker == 0 && header.gain_listener == 0;
  if (!heard_opening_) {
    draw_own_ = header.gain_listener;
    draw_their_ = header.gain_speaker;
    for (BlockState& block : blocks_) block.to_draw = is_paired(block);
  }
  received_at_ = hearing_at_;
  received_once_ = true;
  my_turn_ = true;
  ++counters_.turns_heard;
  return std::nullopt;
}

void Link::apply_record(const TurnRecord& record) {
  BlockState& state = blocks_[record.block];
  draw_replicas(record.block);
  const std::span<float> replica = schema_.blocks()[record.block].of(std::span<float>(received_));
  if (record.codec.id == CodecId::mirror) {
    if (state.keyframe_owed) return refuse(record.block, Reject::base_mismatch);
    const auto own = schema_.blocks()[record.block].of(published());
    std::copy(own.begin(), own.end(), replica.begin());
    ++counters_.keyframes_applied;
  } else {
    const bool keyframe = record.codec.id == CodecId::keyframe || record.fresh;
    // Said again after a reconnect: only then may a delta come twice.
    if (!keyframe && reopened_ && state.received_valid && record.version <= state.received) {
      ++counters_.deltas_duplicate;
      state.heard = true;
      return;
    }
    if (!keyframe && (!state.received_valid || record.version != state.received + 1))
      return refuse(record.block, Reject::base_mismatch);
    if (record.fresh) std::fill(replica.begin(), replica.end(), 0.0f);
    const float most = keyframe ? keyframe_magnitude_max : static_cast<float>(policy_.magnitude_max);
    if (const ApplyError error = apply(record.codec, record.payload, replica, most); error != ApplyError::none)
      return refuse(record.block, to_reject(error));
    ++(keyframe ? counters_.keyframes_applied : counters_.deltas_applied);
    if (policy_.outer_momentum > 0 && !keyframe)
      heard_records_.push_back(Kept{record.block, record.version, record.codec, Bytes(record.payload.begin(), record.payload.end())});
  }
  state.received = record.version;
  state.heard = true;
  state.heard_whole = state.heard_whole || record.fresh || record.codec.id == CodecId::mirror || record.codec.id == CodecId::keyframe;
  set_received_valid(state, true);
}

// Whether both ends have the same two replicas of a block, one of which is news. A block that goes whole starts with the next exchange:
// what each end then takes for the other's replica may still differ.
bool Link::is_paired(const BlockState& state) const {
  return (state.said || state.heard) && !state.said_whole && !state.heard_whole && state.received_valid && !state.keyframe_owed;
}

// What the exchange has moved in the two models, both ends know without a word: the replicas move likewise.
void Link::draw_replicas(std::size_t index) {
  if (!std::exchange(blocks_[index].to_draw, false)) return;
  const Block& block = schema_.blocks()[index];
  kernels().draw_together(block.of(std::span<float>(published_)), block.of(std::span<float>(received_)), draw_own_, draw_their_);
}

void Link::on_resync(const Resync& resync) {
  for (const std::uint32_t block : resync.blocks)
    if (block < blocks_.size()) set_keyframe_owed(blocks_[block], true);
}

std::vector<std::uint32_t> Link::take_resync() { return std::exchange(resync_, {}); }

// Of two ages only the difference counts, so both are taken at the same moment.
FuturePosition Link::move_received(double gain, Instant own_at, double own_step_seconds, Instant now) const {
  if (own_step_seconds <= 0 || !received_once_ || !published_once_) return {};
  return future_position(policy_.future_position, gain, seconds(now - received_at_) / own_step_seconds, seconds(now - own_at) / own_step_seconds);
}

void Link::look_begin(std::span<const float> drift, double own_step_seconds, const OuterStep& outer, Instant now) {
  unsaid_ = {};
  outer_ = outer;
  counters_.change = 0;
  if (blocks_.empty()) heard_gain_ = 0;
  heard_future_ = drift.empty() ? FuturePosition{} : move_received(static_cast<double>(heard_gain_), published_at_, own_step_seconds, now);
}

void Link::look(std::size_t index, std::span<const float> model, std::span<float> update, std::span<const float> drift) {
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  if (heard_gain_ > 0 && index >= heard_blocks_) {
    if (index == 0) apart_ = {};
    mix(index, heard_gain_, heard_future_, block.of(model), block.of(update), drift);
    heard_blocks_ = index + 1;
    if (heard_blocks_ == blocks_.size()) mixed(std::exchange(heard_gain_, 0.0f));
  }
  draw_replicas(index);
  if (state.keyframe_owed) {
    state.change = 1;
    return;
  }
  const ChangeNorms norms = kernels().change(block.of(model), block.of(update), block.of(published()));
  state.change = static_cast<float>(relative(norms, block.size));
  add(unsaid_, norms);
  counters_.change = ratio(unsaid_);
}

double Link::largest_change() const {
  double most = 0;
  for (const BlockState& block : blocks_) most = std::max(most, static_cast<double>(block.change));
  return most;
}

double Link::peer_loss(Instant now) const {
  if (!peer_loss_ || peer_step_seconds_ <= 0) return 0;
  return peer_loss_->forecast(age_seconds(now) / peer_step_seconds_);
}

void Link::begin(const Speech& speech, Instant now) {
  GOSSIPD_ASSERT(my_turn() && !speaking_);
  speech_ = speech;
  speaking_ = true;
  for (BlockState& block : blocks_) block.said = block.said_whole = false;
  if (speech_.gain_self > 0 || speech_.gain_peer > 0) {
    draw_own_ = speech_.gain_self;
    draw_their_ = speech_.gain_peer;
  }
  next_block_ = 0;
  bytes_before_turn_ = counters_.bytes_sent;
  kept_.clear();
  apart_ = {};
  own_future_ = move_received(static_cast<double>(speech_.gain_self), speech_.snapshot_at, speech_.own_step_seconds, now);
}

// One end's half of an exchange on one block, if one of the ends has said it.
void Link::mix(std::size_t index, float gain, const FuturePosition& future, std::span<const float> model, std::span<float> update,
               std::span<const float> drift) {
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  if (!state.received_valid || state.keyframe_owed) return;
  const auto theirs = block.of(received()), own = block.of(published());
  add(apart_, kernels().distance(theirs, own));
  if (gain <= 0 || !(state.said || state.heard)) return;
  transfer_squared_ += kernels().transfer(update, theirs, own, gain);
  correction_squared_ += correct(block, state, future, model, update, drift);
  if (outer_.share > 0 && block.kind == SegmentKind::parameter) carry_on(index, update);
}

// The deltas of the exchange are what the two models have moved since the last one; half their sum goes on by the share. They tell of transfers
// from other links as well, and a large one (to a joiner, after a partition) is not to go on: so no further than this node's own steps have led
// meanwhile, and what the momentum has made of them.
void Link::carry_on(std::size_t index, std::span<float> update) {
  BlockState& state = blocks_[index];
  const double travelled = outer_.travelled[index] - std::exchange(state.travelled, outer_.travelled[index]);
  if (!is_paired(state)) return;
  std::vector<float> moved(update.size(), 0.0f);
  const auto add = [&](const std::vector<Kept>& records, Version version, std::size_t header_bytes) {
    const auto found = std::find_if(records.begin(), records.end(), [&](const Kept& kept) { return kept.block == index && kept.version == version; });
    if (found != records.end()) (void)apply(found->codec, std::span(found->record).subspan(header_bytes), moved, keyframe_magnitude_max);
  };
  if (state.said) add(speaking_ ? kept_ : opened_, state.published, turn_record_bytes);
  if (state.heard) add(heard_records_, state.received, 0);
  // A sparse delta says of few places at once what they have moved in several exchanges.
  const auto places = static_cast<double>(std::count_if(moved.begin(), moved.end(), [](float x) { return x != 0; }));
  const double floats = static_cast<double>(moved.size());
  const double distance = std::sqrt(mean_square(moved) * floats) / 2;
  const double furthest = outer_reach * travelled / (1 - policy_.outer_momentum) * std::sqrt(floats / std::max(places, 1.0));
  const double share = distance > furthest ? outer_.share * furthest / distance : outer_.share;
  (void)kernels().axpy(update, moved, static_cast<float>(share / 2));
}

// That half has been applied to every block.
void Link::mixed(float gain) {
  counters_.weight = static_cast<double>(gain);
  if (received_valid_ == blocks_.size()) counters_.spread = ratio(apart_);
}

// Moves what was received to the time of the own replica it is compared with; returns the square of the norm that it adds.
double Link::correct(const Block& block, BlockState& state, const FuturePosition& future, std::span<const float> model,
                     std::span<float> update, std::span<const float> drift) {
  if (drift.empty() || block.kind != SegmentKind::parameter || future.gain * future.steps == 0) return 0;
  const auto u = block.of(drift);
  if (policy_.curvature <= 0) return kernels().axpy(update, u, static_cast<float>(future.gain * future.steps));
  double scale_squared = 0;
  if (policy_.curvature_mode == CurvatureMode::adaptive)
    scale_squared = state.drift_square = adapt_mean_square(state.drift_square, mean_square(u));
  else
    scale_squared = mean_square(model);
  return add_damped(update, u, future, policy_.curvature / std::sqrt(scale_squared + curvature_epsilon));
}

Codec Link::codec_for(const Block& block) const {
  const CodecId id = speech_.codec.id;
  const bool coarse = id == CodecId::top_k || id == CodecId::ternary || id == CodecId::int4;
  if (block.kind == SegmentKind::statistic) return id == CodecId::fp32 ? speech_.codec : Codec{CodecId::bf16, 0};
  return coarse && block.size < small_block_floats ? Codec{CodecId::int8, 0} : speech_.codec;
}

bool Link::speak(std::span<const float> model, std::span<float> update, std::span<const float> drift, Instant now) {
  GOSSIPD_ASSERT(speaking_ && next_block_ < blocks_.size());
  const auto index = static_cast<std::uint32_t>(next_block_);
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  const auto x = block.of(model);
  const auto u = block.of(update);
  const auto own = block.of(std::span<float>(published_));
  const auto theirs = block.of(received());
  const Kernels& k = kernels();
  if (!k.all_finite(x)) return false;

  // What we have to say, then our half of this turn.
  const bool paired_before = state.received_valid && !state.keyframe_owed;
  if (state.keyframe_owed || static_cast<double>(state.change) > speech_.threshold) {
    std::vector<float> target(block.size);
    k.sum(target, x, u);
    Codec codec = codec_for(block);
    if (state.keyframe_owed && !state.received_valid) {
      if (!k.all_finite(target)) return false;
      append_keyframe(index, target);
    } else {
      const bool mirrored = state.keyframe_owed;
      if (mirrored) {
        std::copy(theirs.begin(), theirs.end(), own.begin());
        append(index, Codec{CodecId::mirror, 0}, own);
        codec = block.kind == SegmentKind::statistic ? codec : policy_.fine_codec;
      }
      const ChangeNorms left = k.distance(target, own);
      // After a mirror a small rest can wait for the next delta.
      if (left.change_squared > 0 && (!mirrored || relative(left, block.size) > speech_.threshold)) {
        if (!k.all_finite(target)) return false;
        append(index, codec, target);
      }
    }
  }
  mix(index, speech_.gain_self, paired_before ? own_future_ : FuturePosition{}, x, u, drift);
  state.to_draw = speech_.gain_self > 0 && is_paired(state);
  ++next_block_;
  if (message_.size() >= turn_message_fill_bytes) flush(false, now);
  return true;
}

// The block whole: quantised if the policy says so, what that loses is in the next delta. Statistics and small blocks stay exact.
void Link::append_keyframe(std::uint32_t index, std::span<const float> target) {
  const Block& block = schema_.blocks()[index];
  const auto own = block.of(std::span<float>(published_));
  const Codec codec = policy_.keyframe_codec;
  if (codec.id != CodecId::fp32 && block.kind == SegmentKind::parameter && block.size >= small_block_floats) {
    std::fill(own.begin(), own.end(), 0.0f);
    return append(index, codec, target, true);
  }
  std::copy(target.begin(), target.end(), own.begin());
  append(index, Codec{CodecId::keyframe, 0}, own);
}

void Link::append(std::uint32_t index, Codec codec, std::span<const float> target, bool fresh) {
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  if (message_.empty()) message_.resize(turn_header_bytes);
  const std::size_t at = message_.size();
  const std::size_t payload = encoded_size(codec, block.size);
  message_.resize(at + turn_record_bytes + payload);
  const std::span<std::byte> record = std::span(message_).subspan(at);
  if (codec.id == CodecId::keyframe) {
    std::memcpy(record.data() + turn_record_bytes, target.data(), target.size_bytes());
  } else if (codec.id != CodecId::mirror) {
    const auto own = block.of(std::span<float>(published_));
    auto encoded = record.subspan(turn_record_bytes);
    if (!encode(codec, target, own, encoded)) {
      // Too large a step for the codec: the block goes whole.
      message_.resize(at);
      std::copy(target.begin(), target.end(), own.begin());
      return append(index, Codec{CodecId::keyframe, 0}, own);
    }
  }
  const bool whole = codec.id == CodecId::keyframe || fresh;
  const bool delta = !whole && codec.id != CodecId::mirror;
  ++state.published;
  ++(delta ? counters_.deltas_sent : counters_.keyframes_sent);
  set_keyframe_owed(state, false);
  state.said = true;
  if (!delta) state.said_whole = true, state.to_draw = false;
  write_turn_record(record.first<turn_record_bytes>(), index, state.published, codec, fresh);
  ++message_records_;
  if (!whole) kept_.push_back(Kept{index, state.published, codec, Bytes(record.begin(), record.end())});
  if (message_records_ == turn_records_max - 1) flush(false, Instant{});
}

void Link::flush(bool last, Instant now) {
  if (message_.empty()) {
    if (!last) return;
    message_.resize(turn_header_bytes);
  }
  TurnHeader header;
  header.last = last;
  header.records = message_records_;
  header.turn = speaking_ ? std::max(spoken_, heard_) + 1 : spoken_;
  header.gain_speaker = speech_.gain_self;
  header.gain_listener = speech_.gain_peer;
  header.weight = speech_.weight;
  header.in_flight = speech_.in_flight;
  header.step = speech_.step;
  header.step_seconds = speech_.step_seconds;
  header.snapshot_age_seconds = static_cast<float>(std::max(0.0, seconds(now - speech_.snapshot_at)));
  header.loss = std::isfinite(speech_.loss) ? static_cast<float>(std::clamp(speech_.loss, 0.0, static_cast<double>(loss_max))) : 0.0f;
  write_turn_header(std::span(message_).first<turn_header_bytes>(), header);
  counters_.bytes_sent += message_.size();
  outbox_.push_back(std::make_shared<const Bytes>(std::move(message_)));
  message_ = {};
  message_records_ = 0;
}

void Link::end(Instant now) {
  GOSSIPD_ASSERT(speaking_ && next_block_ == blocks_.size());
  flush(true, now);
  spoken_ = std::max(spoken_, heard_) + 1;
  speaking_ = false;
  my_turn_ = false;
  heard_opening_ = false;
  spoke_opening_ = speech_.gain_self == 0 && speech_.gain_peer == 0;
  published_at_ = speech_.snapshot_at;
  published_once_ = true;
  ++counters_.turns_spoken;
  const double norm = std::max(apart_.reference_squared, norm_squared_min);
  counters_.transfer = std::sqrt(transfer_squared_ / norm);
  counters_.correction = std::sqrt(correction_squared_ / norm);
  counters_.threshold = speech_.threshold_shown;
  counters_.codec = speech_.codec;
  counters_.trust = speech_.trust;
  if (!spoke_opening_) mixed(speech_.gain_self);
  transfer_squared_ = correction_squared_ = 0;
}

std::vector<SharedBytes> Link::take_messages() {
  std::vector<SharedBytes> messages(outbox_.begin(), outbox_.end());
  outbox_.clear();
  return messages;
}

double Link::age_seconds(Instant now) const { return received_once_ ? std::max(0.0, seconds(now - received_at_)) : 0; }

void Link::check_invariants() const {
  GOSSIPD_ASSERT(!(my_turn_ && hearing_));
  GOSSIPD_ASSERT(!speaking_ || my_turn_);
  std::size_t valid = 0, owed = 0;
  for (const BlockState& block : blocks_) {
    valid += block.received_valid ? 1 : 0;
    owed += block.keyframe_owed ? 1 : 0;
  }
  GOSSIPD_ASSERT(valid == received_valid_ && owed == keyframes_owed_);
  GOSSIPD_ASSERT(published_.size() == received_.size());
}

}  // namespace gossipd
