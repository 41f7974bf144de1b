#include "core/exchange/replica_pair.h"

#include <utility>

#include "core/base/result.h"

namespace gossipd {
namespace {

template <typename T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

}  // namespace

ReplicaPair::ReplicaPair(const Schema& schema, bool in_bf16)
    : schema_(schema), blocks_(schema.blocks().size()), owed_(blocks_.size()) {
  published_.reset(schema.floats(), in_bf16);
  received_.reset(schema.floats(), in_bf16);
}

void ReplicaPair::begin_with(const SharedModel& model) {
  published_.borrow(model, schema_.blocks());
  received_.borrow(model, schema_.blocks());
  for (BlockState& block : blocks_) {
    GOSSIPD_ASSERT(block.published == 0 && block.received == 0);
    block.published = block.received = 1;
    block.keyframe_owed = false;
    block.received_valid = true;
  }
  valid_ = blocks_.size();
  owed_ = 0;
}

bool ReplicaPair::is_paired(std::size_t index) const {
  const BlockState& block = blocks_[index];
  return (block.said || block.heard) && !block.said_whole && !block.heard_whole && is_known(index);
}

std::uint64_t ReplicaPair::hash_of(Which which, std::size_t index, bool contracted) const {
  const Block& block = schema_.blocks()[index];
  const bool of_own = which == Which::published;
  if (!contracted || !blocks_[index].contraction_due)
    return kernels().hash(Replica::Look(of_own ? published_ : received_, block));
  if (in_bf16()) {
    auto own = copied<std::uint16_t>(Replica::NarrowLook(published_, block)),
         theirs = copied<std::uint16_t>(Replica::NarrowLook(received_, block));
    kernels().narrow_contract(own, theirs, own_gain_, peer_gain_);
    std::vector<float> values(block.size);
    kernels().widen(values, of_own ? own : theirs);
    return kernels().hash(values);
  }
  auto own = copied<float>(published(index)), theirs = copied<float>(received(index));
  kernels().contract_replicas(own, theirs, own_gain_, peer_gain_);
  return kernels().hash(of_own ? own : theirs);
}

ChangeNorms ReplicaPair::change_of(std::size_t index, std::span<const float> model,
                                   std::span<const float> update) const {
  const Block& block = schema_.blocks()[index];
  if (!in_bf16()) return kernels().change(model, update, Replica::Look(published_, block));
  return kernels().narrow_change(model, update, Replica::NarrowLook(published_, block));
}

ChangeNorms ReplicaPair::distance(std::size_t index) const {
  const Block& block = schema_.blocks()[index];
  if (!in_bf16())
    return kernels().distance(Replica::Look(received_, block), Replica::Look(published_, block));
  return kernels().narrow_distance(Replica::NarrowLook(received_, block),
                                   Replica::NarrowLook(published_, block));
}

double ReplicaPair::transfer(std::size_t index, std::span<float> update, float gain) const {
  const Block& block = schema_.blocks()[index];
  if (!in_bf16())
    return kernels().transfer(update, Replica::Look(received_, block),
                              Replica::Look(published_, block), gain);
  return kernels().narrow_transfer(update, Replica::NarrowLook(received_, block),
                                   Replica::NarrowLook(published_, block), gain);
}

void ReplicaPair::owe_keyframe(std::size_t index, bool owed) {
  if (std::exchange(blocks_[index].keyframe_owed, owed) == owed) return;
  owed ? ++owed_ : --owed_;
}

void ReplicaPair::invalidate(std::size_t index) {
  if (std::exchange(blocks_[index].received_valid, false)) --valid_;
}

void ReplicaPair::begin_speaking() {
  published_.settle_loan();
  received_.settle_loan();
  for (BlockState& block : blocks_) block.said = block.said_whole = false;
}

void ReplicaPair::begin_hearing() {
  for (BlockState& block : blocks_) block.heard = block.heard_whole = false;
}

void ReplicaPair::mark_said(std::size_t index, bool whole) {
  BlockState& block = blocks_[index];
  ++block.published;
  owe_keyframe(index, false);
  block.said = true;
  if (whole) block.said_whole = true, block.contraction_due = false;
}

void ReplicaPair::mark_heard(std::size_t index, Version version, bool whole) {
  BlockState& block = blocks_[index];
  block.received = version;
  block.heard = true;
  if (whole) block.heard_whole = true;
  if (!std::exchange(block.received_valid, true)) ++valid_;
}

void ReplicaPair::set_contraction(float own_gain, float peer_gain) {
  own_gain_ = own_gain;
  peer_gain_ = peer_gain;
}

void ReplicaPair::contract_all_paired() {
  for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].contraction_due = is_paired(i);
}

void ReplicaPair::contract(std::size_t index) {
  if (!std::exchange(blocks_[index].contraction_due, false)) return;
  const Block& block = schema_.blocks()[index];
  if (in_bf16())
    return kernels().narrow_contract(published_.change_narrow(block),
                                     received_.change_narrow(block), own_gain_, peer_gain_);
  kernels().contract_replicas(Replica::Change(published_, block), Replica::Change(received_, block),
                              own_gain_, peer_gain_);
}

void ReplicaPair::publish(std::size_t index, std::span<const float> values) {
  const Replica::Change own(published_, schema_.blocks()[index]);
  std::ranges::copy(values, std::span<float>(own).begin());
}

void ReplicaPair::publish_received(std::size_t index) { publish(index, received(index)); }

bool ReplicaPair::encode(std::size_t index, Codec codec, std::span<const float> target,
                         std::span<std::byte> out) {
  return gossipd::encode(codec, target, Replica::Change(published_, schema_.blocks()[index]), out);
}

ApplyError ReplicaPair::apply(std::size_t index, Codec codec, std::span<const std::byte> payload,
                              float magnitude_max) {
  const Replica::Change replica(received_, schema_.blocks()[index]);
  return gossipd::apply(codec, payload, replica, magnitude_max);
}

void ReplicaPair::receive(std::size_t index, std::span<const float> values) {
  received_.put(schema_.blocks()[index], values);
}

void ReplicaPair::check_invariants() const {
  std::size_t valid = 0, owed = 0;
  for (const BlockState& block : blocks_) {
    valid += block.received_valid ? 1 : 0;
    owed += block.keyframe_owed ? 1 : 0;
  }
  GOSSIPD_ASSERT(valid == valid_ && owed == owed_);
  GOSSIPD_ASSERT(published_.floats() == received_.floats() &&
                 published_.is_narrow() == received_.is_narrow());
}

}  // namespace gossipd
