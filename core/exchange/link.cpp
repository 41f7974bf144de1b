#include "core/exchange/link.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/correction/curvature.h"

namespace gossipd {
namespace {

constexpr float keyframe_magnitude_max = 1e6f;
// below it a sparse codec's overhead eats its gain
constexpr std::size_t small_block_floats = 512;
// times as far as own steps have led, outer momentum goes at most
constexpr double outer_reach = 2;
constexpr double norm_squared_min = 1e-30;  // a divisor is at least this
// a block that is nearly zero has no meaningful relative change
constexpr double reference_rms_min = 1e-3;

Reject to_reject(ApplyError error) {
  switch (error) {
    case ApplyError::not_finite: return Reject::not_finite;
    case ApplyError::too_large: return Reject::absurd_magnitude;
    default: return Reject::malformed;
  }
}

double relative(const ChangeNorms& norms, std::size_t floats) {
  const double floor = reference_rms_min * reference_rms_min * static_cast<double>(floats);
  return std::sqrt(norms.change_squared / std::max(norms.reference_squared, floor));
}

void add(ChangeNorms& sum, const ChangeNorms& norms) {
  sum.change_squared += norms.change_squared;
  sum.reference_squared += norms.reference_squared;
}

double ratio(const ChangeNorms& norms) {
  return std::sqrt(norms.change_squared / std::max(norms.reference_squared, norm_squared_min));
}

}  // namespace

Link::Link(NodeId self, NodeId peer, const Schema& schema, const ExchangePolicy& policy,
           TransferGuard* guard)
    : self_(self),
      peer_(peer),
      schema_(schema),
      policy_(policy),
      guard_(guard),
      peer_loss_(make_forecaster(policy.loss_trust)) {}

std::uint64_t Link::hash_of(Which which, std::size_t index) const {
  const Block& block = schema_.blocks()[index];
  const Replica::Look look_own(published_, block), look_their(received_, block);
  const std::span<const float> own = look_own, theirs = look_their;
  if (!blocks_[index].to_draw || speaking_ || resend_turn_)
    return kernels().hash(which == Which::published ? own : theirs);
  std::vector<float> a(own.begin(), own.end()), b(theirs.begin(), theirs.end());
  contract_replicas(a, b);
  published_.round(a);
  received_.round(b);
  return kernels().hash(which == Which::published ? a : b);
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
  // so that both ends know that it is not mixed in this exchange
  set_keyframe_owed(blocks_[block], true);
  if (resync_.size() < resync_blocks_max) resync_.push_back(static_cast<std::uint32_t>(block));
}

std::optional<Reject> Link::on_turn(std::span<const std::byte> message, double rtt_seconds,
                                    Instant now) {
  TurnHeader header;
  std::vector<TurnRecord> records;
  std::optional<Reject> reject = decode_turn(message, schema_, header, records);
  if (!reject && (!open_ || my_turn_ || header.turn != std::max(spoken_, heard_) + 1))
    reject = Reject::out_of_turn;
  if (!reject && !hearing_) bounds_.begin(blocks_.size());
  if (!reject) reject = bounds_.admit(header, records);
  if (reject) {
    ++counters_.refused[raw(*reject)];
    return reject;
  }
  counters_.bytes_received += message.size();
  if (!hearing_) {
    hearing_ = true;
    // The answer has begun, so the other end holds all we said.
    if (policy_.outer_momentum > 0 && !unacknowledged_.empty())
      opened_ = std::move(unacknowledged_);
    unacknowledged_.clear();
  }
  if (hearing_turn_ != header.turn) {
    hearing_turn_ = header.turn;
    heard_records_.clear();
    for (BlockState& block : blocks_) block.heard = block.heard_whole = false;
  }
  blocks_heard_.clear();
  for (const TurnRecord& record : records) {
    apply_record(record);
    blocks_heard_.push_back(record.block);
  }
  peer_weight_ = header.weight;
  peer_in_flight_ = std::max<std::uint32_t>(header.in_flight, 1);
  peer_step_seconds_ = header.step_seconds;
  hearing_at_ =
      now - from_seconds(rtt_seconds / 2 + static_cast<double>(header.snapshot_age_seconds));
  if (!header.last) return std::nullopt;
  if (peer_loss_) peer_loss_->observe(header.step, static_cast<double>(header.loss));
  hearing_ = reopened_ = false;
  loss_said_ = static_cast<double>(header.loss);
  heard_ = header.turn;
  heard_gain_ = header.gain_listener;
  heard_blocks_ = 0;
  heard_opening_ = header.gain_speaker == 0 && header.gain_listener == 0;
  if (!heard_opening_) {
    contract_own_ = header.gain_listener;
    contract_their_ = header.gain_speaker;
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
  const Block& block = schema_.blocks()[record.block];
  if (is_whole(record)) {
    if (const auto reject = apply_whole(record)) return refuse(record.block, *reject);
    state.heard_whole = true;
    ++counters_.keyframes_applied;
  } else {
    // Said again after a reconnect: only then may a delta come twice.
    if (reopened_ && state.received_valid && record.version <= state.received) {
      ++counters_.deltas_duplicate;
      state.heard = true;
      return;
    }
    if (!state.received_valid || record.version != state.received + 1)
      return refuse(record.block, Reject::base_mismatch);
    const Replica::Change replica(received_, block);
    if (const ApplyError error =
            apply(record.codec, record.payload, replica, static_cast<float>(policy_.magnitude_max));
        error != ApplyError::none)
      return refuse(record.block, to_reject(error));
    ++counters_.deltas_applied;
    if (policy_.outer_momentum > 0)
      heard_records_[record.block] =
          Unacknowledged{record.block, record.version, record.codec,
                         Bytes(record.payload.begin(), record.payload.end())};
  }
  state.received = record.version;
  state.heard = true;
  set_received_valid(state, true);
}

// Decoded beside the replica, which changes only when all is well.
std::optional<Reject> Link::apply_whole(const TurnRecord& record) {
  if (record.hash.has_value() != (protocol_ >= protocol_of_block_hashes)) return Reject::malformed;
  const Block& block = schema_.blocks()[record.block];
  std::vector<float> decoded(block.size, 0.0f);
  if (record.codec.id == CodecId::mirror) {
    if (blocks_[record.block].keyframe_owed) return Reject::base_mismatch;
    const Replica::Look own(published_, block);
    std::ranges::copy(std::span<const float>(own), decoded.begin());
  } else if (const ApplyError error =
                 apply(record.codec, record.payload, decoded, keyframe_magnitude_max);
             error != ApplyError::none) {
    return to_reject(error);
  }
  received_.round(decoded);
  if (record.hash && kernels().hash(decoded) != *record.hash) return Reject::hash_mismatch;
  received_.put(block, decoded);
  return std::nullopt;
}

// Whether both ends have the same two replicas of a block, one of which is news. A block that goes
// whole starts with the next exchange: what each end then takes for the other's replica may still
// differ.
bool Link::is_paired(const BlockState& state) const {
  return (state.said || state.heard) && !state.said_whole && !state.heard_whole &&
         state.received_valid && !state.keyframe_owed;
}

// What the exchange has moved in the two models, both ends know without a word: the replicas move
// likewise.
void Link::draw_replicas(std::size_t index) {
  if (!std::exchange(blocks_[index].to_draw, false)) return;
  const Block& block = schema_.blocks()[index];
  const Replica::Change own(published_, block), theirs(received_, block);
  contract_replicas(own, theirs);
}

// Where mix() has moved the models: not where the two are next to each other in bf16.
void Link::contract_replicas(std::span<float> own, std::span<float> theirs) const {
  if (!published_.is_narrow())
    return kernels().contract_replicas(own, theirs, contract_own_, contract_their_);
  const std::vector<float> own_before(own.begin(), own.end()),
      theirs_before(theirs.begin(), theirs.end());
  kernels().contract_replicas(own, theirs, contract_own_, contract_their_);
  for (std::size_t i = 0; i < own.size(); ++i)
    if (are_adjacent_bf16(own_before[i], theirs_before[i]))
      own[i] = own_before[i], theirs[i] = theirs_before[i];
}

void Link::copy_received(std::size_t block, std::span<float> out) const {
  const Replica::Look look(received_, schema_.blocks()[block]);
  const std::span<const float> values = look;
  GOSSIPD_ASSERT(values.size() == out.size());
  std::memcpy(out.data(), values.data(), out.size_bytes());
}

void Link::on_resync(const Resync& resync) {
  for (const std::uint32_t block : resync.blocks)
    if (block < blocks_.size()) set_keyframe_owed(blocks_[block], true);
}

std::vector<std::uint32_t> Link::take_resync() { return std::exchange(resync_, {}); }

// Of two ages only the difference counts, so both are taken at the same moment.
FuturePosition Link::move_received(double gain, Instant own_at, double own_step_seconds,
                                   Instant now) const {
  if (own_step_seconds <= 0 || !received_once_ || !published_once_) return {};
  // Further than its own window a moving average foretells nothing: after a cut the ages may be
  // hours apart.
  const double own_age = seconds(now - own_at) / own_step_seconds,
               window = policy_.drift_window_steps;
  const double received_age = std::clamp(seconds(now - received_at_) / own_step_seconds,
                                         own_age - window, own_age + window);
  return future_position(policy_.future_position, gain, received_age, own_age);
}

void Link::look_begin(std::span<const float> drift, double own_step_seconds, const OuterStep& outer,
                      Instant now, bool trusted) {
  trusted_ = trusted;
  unpublished_change_ = {};
  outer_ = outer;
  counters_.change = 0;
  if (blocks_.empty()) heard_gain_ = 0;
  heard_future_ = drift.empty() ? FuturePosition{}
                                : move_received(static_cast<double>(heard_gain_), published_at_,
                                                own_step_seconds, now);
}

void Link::look(std::size_t index, std::span<const float> model, std::span<float> update,
                std::span<const float> drift) {
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
  const ChangeNorms norms = change_of(block, model, update);
  state.change = static_cast<float>(relative(norms, block.size));
  add(unpublished_change_, norms);
  counters_.change = ratio(unpublished_change_);
}

// In bf16 of what the replica can hold: a difference below its rounding could be said again and
// again.
ChangeNorms Link::change_of(const Block& block, std::span<const float> model,
                            std::span<const float> update) const {
  const Replica::Look own(published_, block);
  if (!published_.is_narrow()) return kernels().change(block.of(model), block.of(update), own);
  std::vector<float> target(block.size);
  kernels().sum(target, block.of(model), block.of(update));
  if (!kernels().all_finite(target))
    return kernels().change(block.of(model), block.of(update), own);
  published_.round(target);
  return kernels().distance(target, own);
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
    contract_own_ = speech_.gain_self;
    contract_their_ = speech_.gain_peer;
  }
  next_block_ = 0;
  bytes_before_turn_ = counters_.bytes_sent;
  unacknowledged_.clear();
  apart_ = {};
  own_future_ = move_received(static_cast<double>(speech_.gain_self), speech_.snapshot_at,
                              speech_.own_step_seconds, now);
}

// One end's half of an exchange on one block, if one of the ends has said it.
void Link::mix(std::size_t index, float gain, const FuturePosition& future,
               std::span<const float> model, std::span<float> update,
               std::span<const float> drift) {
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  if (!state.received_valid || state.keyframe_owed) return;
  const Replica::Look received(received_, block), own(published_, block);
  std::vector<float> settled;
  const std::span<const float> theirs = mixing_target(received, own, settled);
  const ChangeNorms norms = kernels().distance(theirs, own);
  add(apart_, norms);
  if (gain <= 0 || !(state.said || state.heard)) return;
  const double so_far = outer_.travelled.empty() ? 0 : outer_.travelled[index];
  const double before = outer_.travelled.empty() ? -1 : std::exchange(state.travelled, so_far);
  const double taken =
      share_of(index, static_cast<double>(gain) * std::sqrt(norms.change_squared),
               before < 0 ? 0 : std::max(0.0, so_far - before), std::sqrt(norms.reference_squared));
  if (taken > 0)
    transfer_squared_ += kernels().transfer(update, theirs, own, gain * static_cast<float>(taken));
  if (taken == 1) correction_squared_ += correct(block, state, future, model, update, drift);
  if (taken > 0 && outer_.share > 0 && block.kind == SegmentKind::parameter)
    apply_outer_momentum(index, so_far - std::max(0.0, before), taken, update);
}

// Of a transfer of this norm on a block.
double Link::share_of(std::size_t index, double norm, double travelled, double own_norm) {
  if (!trusted_) return 0;
  if (guard_ == nullptr) return 1;
  const double taken = guard_->share(peer_, {.block = index,
                                             .floats = schema_.blocks()[index].size,
                                             .norm = norm,
                                             .travelled = travelled,
                                             .own_norm = own_norm,
                                             .training = !outer_.travelled.empty()});
  clipped_ = clipped_ || taken < 1;
  return taken;
}

// Two models whose replicas are next to each other in bf16 would swap sides at every exchange and
// never come to rest: each is nearer to the other than the replicas can tell, so they count as
// equal.
std::span<const float> Link::mixing_target(std::span<const float> theirs,
                                           std::span<const float> own,
                                           std::vector<float>& settled) const {
  if (!published_.is_narrow()) return theirs;
  settled.assign(theirs.begin(), theirs.end());
  for (std::size_t i = 0; i < settled.size(); ++i)
    if (are_adjacent_bf16(settled[i], own[i])) settled[i] = own[i];
  return settled;
}

// The deltas of the exchange are what the two models have moved since the last one; half their sum
// goes on by the share. They tell of transfers from other links as well, and a large one (to a
// joiner, after a partition) is not to go on: so no further than this node's own steps have led
// meanwhile, and what the momentum has made of them.
void Link::apply_outer_momentum(std::size_t index, double travelled, double taken,
                                std::span<float> update) {
  BlockState& state = blocks_[index];
  if (!is_paired(state)) return;
  std::vector<float> moved(update.size(), 0.0f);
  const auto add = [&](const Unacknowledged& kept, std::size_t header_bytes) {
    (void)apply(kept.codec, std::span(kept.record).subspan(header_bytes), moved,
                keyframe_magnitude_max);
  };
  if (state.said) {
    const std::vector<Unacknowledged>& said = speaking_ ? unacknowledged_ : opened_;
    const auto is_it = [&](const Unacknowledged& kept) {
      return kept.block == index && kept.version == state.published;
    };
    if (const auto found = std::find_if(said.begin(), said.end(), is_it); found != said.end())
      add(*found, turn_record_bytes);
  }
  if (state.heard)
    if (const auto found = heard_records_.find(static_cast<std::uint32_t>(index));
        found != heard_records_.end() && found->second.version == state.received)
      add(found->second, 0);
  // A sparse delta says of few places at once what they have moved in several exchanges.
  const auto places = static_cast<double>(
      std::count_if(moved.begin(), moved.end(), [](float x) { return x != 0; }));
  const double floats = static_cast<double>(moved.size());
  const double distance = std::sqrt(mean_square(moved) * floats) / 2;
  const double furthest =
      outer_reach * travelled / (1 - outer_.momentum) * std::sqrt(floats / std::max(places, 1.0));
  const double share = distance > furthest ? outer_.share * furthest / distance : outer_.share;
  (void)kernels().axpy(update, moved, static_cast<float>(taken * share / 2));
}

// That half has been applied to every block.
void Link::mixed(float gain) {
  counters_.gain = static_cast<double>(gain);
  if (!trusted_) ++counters_.transfers_distrusted;
  if (std::exchange(clipped_, false)) ++counters_.transfers_clipped;
  if (trusted_ && guard_ != nullptr && guard_->finish(peer_)) offends_ = true;
  if (received_valid_ == blocks_.size()) counters_.consensus_distance = ratio(apart_);
}

// Moves what was received to the time of the own replica it is compared with; returns the square of
// the norm that it adds.
double Link::correct(const Block& block, BlockState& state, const FuturePosition& future,
                     std::span<const float> model, std::span<float> update,
                     std::span<const float> drift) {
  if (drift.empty() || block.kind != SegmentKind::parameter || future.gain * future.steps == 0)
    return 0;
  const auto u = block.of(drift);
  if (policy_.curvature <= 0)
    return kernels().axpy(update, u, static_cast<float>(future.gain * future.steps));
  double scale_squared = 0;
  if (policy_.curvature_mode == CurvatureMode::adaptive)
    scale_squared = state.drift_square = adapt_mean_square(state.drift_square, mean_square(u));
  else
    scale_squared = mean_square(model);
  return add_damped(update, u, future,
                    policy_.curvature / std::sqrt(scale_squared + curvature_epsilon));
}

Codec Link::codec_for(const Block& block) const {
  const CodecId id = speech_.codec.id;
  const bool coarse = id == CodecId::top_k || id == CodecId::ternary || id == CodecId::int4;
  if (block.kind == SegmentKind::statistic)
    return id == CodecId::fp32 ? speech_.codec : Codec{CodecId::bf16, 0};
  return coarse && block.size < small_block_floats ? Codec{CodecId::int8, 0} : speech_.codec;
}

bool Link::speak(std::span<const float> model, std::span<float> update,
                 std::span<const float> drift, Instant now) {
  GOSSIPD_ASSERT(speaking_ && !spoken_all());
  const auto index = static_cast<std::uint32_t>(next_block());
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  const auto x = block.of(model);
  const auto u = block.of(update);
  const Kernels& k = kernels();
  if (!k.all_finite(x)) return false;

  // What we have to say, then our half of this turn.
  const bool paired_before = state.received_valid && !state.keyframe_owed;
  if (state.keyframe_owed || static_cast<double>(state.change) > speech_.threshold) {
    std::vector<float> target(block.size);
    k.sum(target, x, u);
    if (!k.all_finite(target)) return false;
    // What bf16 cannot hold is not to be said: beside it a codec would pass over smaller changes,
    // and the same would be said for ever.
    published_.round(target);
    Codec codec = codec_for(block);
    if (state.keyframe_owed && !state.received_valid) {
      append_keyframe(index, target);
    } else {
      const bool mirrored = state.keyframe_owed;
      if (mirrored) {
        become_received(block);
        append(index, Codec{CodecId::mirror, 0}, {});
        codec = block.kind == SegmentKind::statistic ? codec : policy_.consensus_codec;
      }
      const ChangeNorms left = k.distance(target, Replica::Look(published_, block));
      // After a mirror a small rest can wait for the next delta.
      if (left.change_squared > 0 &&
          (!mirrored || relative(left, block.size) > speech_.threshold)) {
        append(index, codec, target);
      }
    }
  }
  mix(index, speech_.gain_self, paired_before ? own_future_ : FuturePosition{}, x, u, drift);
  state.to_draw = speech_.gain_self > 0 && is_paired(state);
  ++next_block_;
  if (is_full()) flush(false, now);
  return true;
}

void Link::become_received(const Block& block) {
  const Replica::Look theirs(received_, block);
  const Replica::Change own(published_, block);
  std::ranges::copy(std::span<const float>(theirs), std::span<float>(own).begin());
}

void Link::publish(const Block& block, std::span<const float> target) {
  const Replica::Change own(published_, block);
  std::ranges::copy(target, std::span<float>(own).begin());
}

// The block whole: quantised if the policy says so, what that loses is in the next delta.
// Statistics and small blocks stay exact.
void Link::append_keyframe(std::uint32_t index, std::span<const float> target) {
  const Block& block = schema_.blocks()[index];
  const Codec codec = policy_.keyframe_codec;
  if (codec.id != CodecId::fp32 && block.kind == SegmentKind::parameter &&
      block.size >= small_block_floats) {
    publish(block, std::vector<float>(block.size, 0.0f));
    return append(index, codec, target, true);
  }
  publish(block, target);
  append(index, Codec{CodecId::keyframe, 0}, target);
}

void Link::append(std::uint32_t index, Codec codec, std::span<const float> target, bool fresh) {
  const Block& block = schema_.blocks()[index];
  BlockState& state = blocks_[index];
  TurnRecord header{.block = index, .version = state.published + 1, .codec = codec, .fresh = fresh};
  const bool delta = !is_whole(header);
  const std::size_t head =
      turn_record_bytes + (!delta && protocol_ >= protocol_of_block_hashes ? turn_hash_bytes : 0);
  if (message_.empty()) message_.resize(turn_header_bytes);
  const std::size_t at = message_.size();
  message_.resize(at + head + encoded_size(codec, block.size));
  const std::span<std::byte> record = std::span(message_).subspan(at);
  if (codec.id == CodecId::keyframe) {
    std::memcpy(record.data() + head, target.data(), target.size_bytes());
  } else if (codec.id != CodecId::mirror) {
    if (!encode(codec, target, Replica::Change(published_, block), record.subspan(head))) {
      // Too large a step for the codec: the block goes whole.
      message_.resize(at);
      publish(block, target);
      return append(index, Codec{CodecId::keyframe, 0}, target);
    }
  }
  if (head > turn_record_bytes) {
    header.hash = kernels().hash(Replica::Look(published_, block));
    std::memcpy(record.data() + turn_record_bytes, &*header.hash, turn_hash_bytes);
  }
  ++state.published;
  ++(delta ? counters_.deltas_sent : counters_.keyframes_sent);
  set_keyframe_owed(state, false);
  state.said = true;
  if (!delta) state.said_whole = true, state.to_draw = false;
  write_turn_record(record.first<turn_record_bytes>(), header);
  ++message_records_;
  message_floats_ += block.size;
  if (delta || codec.id == CodecId::mirror)
    unacknowledged_.push_back(
        Unacknowledged{index, state.published, codec, Bytes(record.begin(), record.end())});
}

// The next record begins another message: of this one so much is said that it goes, or there is no
// room for two more records, as a block has at most.
bool Link::is_full() const {
  return message_.size() >= turn_message_fill_bytes ||
         message_floats_ >= turn_message_fill_floats ||
         message_records_ + turn_records_per_block_max > turn_records_max;
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
  header.snapshot_age_seconds =
      static_cast<float>(std::max(0.0, seconds(now - speech_.snapshot_at)));
  header.loss =
      std::isfinite(speech_.loss)
          ? static_cast<float>(std::clamp(speech_.loss, 0.0, static_cast<double>(loss_max)))
          : 0.0f;
  write_turn_header(std::span(message_).first<turn_header_bytes>(), header);
  counters_.bytes_sent += message_.size();
  outbox_.push_back(std::make_shared<const Bytes>(std::move(message_)));
  message_ = {};
  message_records_ = 0;
  message_floats_ = 0;
}

void Link::end(Instant now) {
  GOSSIPD_ASSERT(speaking_ && spoken_all());
  flush(true, now);
  order_.clear();
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

double Link::age_seconds(Instant now) const {
  return received_once_ ? std::max(0.0, seconds(now - received_at_)) : 0;
}

void Link::check_invariants() const {
  GOSSIPD_ASSERT(!(my_turn_ && hearing_));
  GOSSIPD_ASSERT(!speaking_ || my_turn_);
  std::size_t valid = 0, owed = 0;
  for (const BlockState& block : blocks_) {
    valid += block.received_valid ? 1 : 0;
    owed += block.keyframe_owed ? 1 : 0;
  }
  GOSSIPD_ASSERT(valid == received_valid_ && owed == keyframes_owed_);
  GOSSIPD_ASSERT(published_.floats() == received_.floats() &&
                 published_.is_narrow() == received_.is_narrow());
}

}  // namespace gossipd
