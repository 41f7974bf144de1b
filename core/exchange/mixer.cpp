#include "core/exchange/mixer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "core/codec/sparse_sum.h"
#include "core/exchange/change.h"

namespace gossipd {
namespace {

// Outer momentum goes at most this many times as far as own steps have led, or those of the fastest
// neighbour.
constexpr double outer_reach = 2;

// What of a sparse vector is not zero.
struct Places {
  std::size_t count = 0;
  double squares = 0;  // their sum, from front to back
};

// Zeros would add nothing to the sum, but each addition waits for the one before.
Places places_of(std::span<const float> values) {
  const auto found = std::make_unique_for_overwrite<float[]>(values.size());
  std::size_t count = 0;
  for (const float value : values) {
    found[count] = value;
    count += (std::bit_cast<std::uint32_t>(value) & 0x7fffffffu) != 0 ? 1 : 0;
  }
  Places places{.count = count};
  for (const float value : std::span(found.get(), count))
    places.squares += static_cast<double>(value) * static_cast<double>(value);
  return places;
}

}  // namespace

Mixer::Mixer(const Parts& parts) : parts_(parts), travelled_(parts.replicas.size(), -1) {}

void Mixer::owe(float gain) {
  owed_gain_ = gain;
  owed_blocks_ = 0;
}

void Mixer::begin_look(const OuterStep& outer, bool trusted, const FuturePosition& position) {
  trusted_ = trusted;
  outer_ = outer;
  look_position_ = position;
  if (parts_.replicas.size() == 0) owed_gain_ = 0;
}

std::optional<Mixer::Half> Mixer::begin_half(std::size_t block, const OwnModel& own) const {
  if (!owes() || block < owed_blocks_) return std::nullopt;
  return Half{.block = block,
              .own = own,
              .gain = owed_gain_,
              .position = look_position_,
              .begins = block == 0};
}

void Mixer::end_half(const Half& half) {
  owed_blocks_ = half.block + 1;
  if (owed_blocks_ == parts_.replicas.size()) finish(std::exchange(owed_gain_, 0.0f));
}

void Mixer::begin_turn(const Speech& speech, const FuturePosition& position) {
  if (!speech.is_opening()) apart_ = {};
  turn_position_ = position;
}

Mixer::Half Mixer::half_of_turn(std::size_t block, float gain, bool paired_before,
                                const OwnModel& own) const {
  return {.block = block,
          .own = own,
          .gain = gain,
          .position = paired_before ? turn_position_ : FuturePosition{}};
}

void Mixer::end_turn(const Speech& speech) {
  const double norm = std::max(apart_.reference_squared, norm_squared_min);
  parts_.counters.transfer = std::sqrt(transfer_squared_ / norm);
  parts_.counters.correction = std::sqrt(correction_squared_ / norm);
  if (!speech.is_opening()) finish(speech.gain_self);
  transfer_squared_ = correction_squared_ = 0;
}

void Mixer::disconnect() {
  offends_ = clipped_ = false;
  taken_gain_.reset();
  if (parts_.guard != nullptr) parts_.guard->close(parts_.peer);
}

void Mixer::measure(Half& half) const {
  if (!parts_.replicas.is_known(half.block)) return;
  half.norms = parts_.replicas.distance(half.block);
  half.measured = true;
}

void Mixer::decide(Half& half) {
  if (half.begins) apart_ = {};
  if (!half.measured) return;
  add(apart_, half.norms);
  const ReplicaPair::BlockState& state = parts_.replicas.state(half.block);
  if (half.gain <= 0 || !(state.said || state.heard)) return;
  const bool at_rest = outer_.travelled.empty();
  const double so_far = at_rest ? 0 : outer_.travelled[half.block];
  const double before = at_rest ? -1 : std::exchange(travelled_[half.block], so_far);
  half.travelled = so_far - std::max(0.0, before);
  ask(half, {.block = half.block,
             .floats = parts_.schema.blocks()[half.block].size,
             .norm = static_cast<double>(half.gain) * std::sqrt(half.norms.change_squared),
             .travelled = before < 0 ? 0 : std::max(0.0, so_far - before),
             .own_norm = std::sqrt(half.norms.reference_squared),
             .training = !at_rest});
}

void Mixer::apply(Half& half) const {
  if (half.taken <= 0) return;
  const bool parameter = parts_.schema.blocks()[half.block].kind == SegmentKind::parameter;
  half.transfer_squared = parts_.replicas.transfer(half.block, half.own.update,
                                                   half.gain * static_cast<float>(half.taken));
  if (half.taken == 1 && parameter && !half.own.drift.empty())
    half.correction_squared = parts_.correction.add_to(half.own.update, half.block, half.position,
                                                       half.own.model, half.own.drift);
  if (outer_.share > 0 && parameter) apply_outer_momentum(half);
}

void Mixer::account(const Half& half) {
  clipped_ = clipped_ || half.cut;
  transfer_squared_ += half.transfer_squared;
  correction_squared_ += half.correction_squared;
}

void Mixer::ask(Half& half, const TransferGuard::Ask& ask) {
  if (!trusted_) return;
  half.taken = 1;
  half.left = std::numeric_limits<double>::infinity();
  if (parts_.guard == nullptr) return;
  half.taken = parts_.guard->share(parts_.peer, ask, &half.left);
  half.left = std::max(0.0, half.left - half.taken * ask.norm);
  clipped_ = clipped_ || half.taken < 1;
}

// The deltas of the exchange are what the two models have moved since the last one; half their sum
// goes on by the share. They tell of transfers from other links as well, and a large one (to a
// joiner, after a partition) must not go on: so no further than this node's own steps have led
// meanwhile, or those of a faster neighbour, and what the momentum has made of them; and with the
// transfer no further than the guard allows, since a liar says any steps and deltas that it likes.
void Mixer::apply_outer_momentum(Half& half) const {
  const std::size_t index = half.block;
  if (!parts_.replicas.is_paired(index)) return;
  const ReplicaPair::BlockState& state = parts_.replicas.state(index);
  struct Delta {
    Codec codec;
    std::span<const std::byte> payload;
  };
  std::vector<Delta> deltas;
  const auto take = [&](const DeltaRecord* delta, std::size_t header_bytes) {
    if (delta != nullptr)
      deltas.push_back({delta->codec, std::span(delta->bytes).subspan(header_bytes)});
  };
  if (state.said) take(parts_.sender.said(index, state.published), turn_record_bytes);
  if (state.heard) take(parts_.receiver.heard_delta(index, state.received), 0);
  const std::span<float> update = half.own.update;
  const auto is_sparse = [](const Delta& delta) { return delta.codec.id == CodecId::top_k; };
  if (std::ranges::all_of(deltas, is_sparse)) {
    SparseSum moved(update.size());
    for (const Delta& delta : deltas) moved.add(delta.codec.keep, delta.payload);
    moved.finish();
    moved.add_to(update, static_cast<float>(outer_share_of(half, moved.squares(), moved.count())));
    return;
  }
  std::vector<float> moved(update.size(), 0.0f);
  for (const Delta& delta : deltas)
    (void)gossipd::apply(delta.codec, delta.payload, moved, keyframe_magnitude_max);
  const Places places = places_of(moved);
  (void)kernels().axpy(update, moved,
                       static_cast<float>(outer_share_of(half, places.squares, places.count)));
}

// Of the two deltas' sum, which is not zero in so many places. A sparse delta says of few places at
// once what they have moved in several exchanges.
double Mixer::outer_share_of(Half& half, double squares, std::size_t places) const {
  const double floats = static_cast<double>(half.own.update.size());
  const double distance = std::sqrt(squares) / 2;
  const double furthest = outer_reach * outer_.fastest * half.travelled *
                          std::sqrt(floats / std::max(static_cast<double>(places), 1.0));
  const double share = distance > furthest ? outer_.share * furthest / distance : outer_.share;
  const double taken = half.taken * share;
  half.cut = taken * distance > half.left;
  return (half.cut ? half.left / distance : taken) / 2;
}

// Our half has been applied to every block.
void Mixer::finish(float gain) {
  ExchangeCounters& counters = parts_.counters;
  counters.gain = static_cast<double>(gain);
  const bool clipped = std::exchange(clipped_, false);
  if (!trusted_) ++counters.transfers_distrusted;
  if (clipped) ++counters.transfers_clipped;
  taken_gain_ = trusted_ && !clipped ? std::optional(gain) : std::nullopt;
  if (trusted_ && parts_.guard != nullptr && parts_.guard->finish(parts_.peer)) offends_ = true;
  if (parts_.replicas.valid() == parts_.replicas.size())
    counters.consensus_distance = ratio(apart_);
}

}  // namespace gossipd
