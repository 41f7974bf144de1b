// How a link begins, is found again after a cut, and ends.
#include <algorithm>
#include <functional>
#include <utility>

#include "core/exchange/link.h"

namespace gossipd {
namespace {

std::uint64_t mix_nonces(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t mixed =
      (std::min(a, b) * 0x9e3779b97f4a7c15ull) ^ (std::max(a, b) + 0xd1b54a32d192ed03ull);
  return mixed == 0 ? 1 : mixed;
}

// First what the other end lacks, from the block on that it has named and round to it, then the
// rest likewise. Empty: the schema's order.
std::vector<std::uint32_t> order_of(const Ready& theirs, std::size_t blocks) {
  std::vector<std::uint32_t> missing, held;
  if (theirs.first_block == 0 && theirs.held_flips.empty()) return missing;
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto block = static_cast<std::uint32_t>((theirs.first_block + i) % blocks);
    const auto flips = std::upper_bound(theirs.held_flips.begin(), theirs.held_flips.end(), block) -
                       theirs.held_flips.begin();
    (flips % 2 == 0 ? missing : held).push_back(block);
  }
  missing.insert(missing.end(), held.begin(), held.end());
  return missing;
}

// Turns alternate, so the last one an end heard is the last one spoken or the one two before it.
bool reached(std::uint32_t spoken, std::uint32_t heard) {
  return heard == spoken || heard + 2 == spoken || (spoken == 1 && heard == 0);
}

}  // namespace

void Link::describe(Ready& ready) const {
  ready.epoch = epoch_;
  ready.spoken = spoken_;
  ready.heard = heard_;
  ready.bf16 = policy_.replicas == ReplicaFormat::bf16;
}

bool Link::orders(const Ready& theirs) const {
  const std::size_t blocks = schema_.blocks().size();
  const auto& flips = theirs.held_flips;
  return (theirs.first_block == 0 || theirs.first_block < blocks) &&
         std::adjacent_find(flips.begin(), flips.end(), std::greater_equal<>()) == flips.end() &&
         (flips.empty() || flips.back() < blocks);
}

bool Link::open(const Ready& mine, const Ready& theirs, std::uint32_t protocol, Instant) {
  GOSSIPD_ASSERT(!open_ && !awaiting_state_);
  const bool in_bf16 = mine.bf16 && theirs.bf16;
  const bool remembered =
      epoch_ != 0 && protocol == protocol_ && in_bf16 == published_.is_narrow() &&
      mine.epoch == epoch_ && theirs.epoch == epoch_ && mine.has_model && theirs.has_model &&
      schema_.blocks().size() <= replica_state_blocks_max && reached(mine.spoken, theirs.heard) &&
      reached(theirs.spoken, mine.heard) &&
      (mine.spoken == theirs.heard || theirs.spoken == mine.heard);
  if (remembered) {
    awaiting_state_ = true;
    resend_turn_ = theirs.heard < mine.spoken;
    return true;
  }
  epoch_ = mix_nonces(mine.nonce, theirs.nonce);
  protocol_ = protocol;
  start_fresh(mine.has_model == theirs.has_model ? raw(self_) < raw(peer_) : mine.has_model,
              in_bf16);
  GOSSIPD_ASSERT(orders(theirs));
  if (!theirs.has_model) order_ = order_of(theirs, blocks_.size());
  return false;
}

void Link::start_fresh(bool i_speak_first, bool in_bf16) {
  published_.reset(schema_.floats(), in_bf16);
  received_.reset(schema_.floats(), in_bf16);
  blocks_.assign(schema_.blocks().size(), BlockState{});
  received_valid_ = 0;
  keyframes_owed_ = blocks_.size();
  open_ = true;
  awaiting_state_ = false;
  my_turn_ = i_speak_first;
  // an earlier opening may not have come as far as the replicas' state
  reopened_ = resend_turn_ = false;
  speaking_ = hearing_ = heard_opening_ = spoke_opening_ = false;
  spoken_ = heard_ = hearing_turn_ = 0;
  heard_gain_ = 0;
  order_.clear();
  unacknowledged_.clear();
  opened_.clear();
  heard_records_.clear();
  outbox_.clear();
  resync_.clear();
  message_.clear();
  message_records_ = 0;
  message_floats_ = 0;
  received_once_ = published_once_ = false;
  counters_.consensus_distance = 1;  // the other end may have come back with another model
  loss_said_ = 0;
  peer_loss_ = make_forecaster(policy_.loss_trust);  // its steps may count from anew
}

ReplicaState Link::replica_state() const {
  ReplicaState state;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const BlockState& block = blocks_[i];
    state.blocks.push_back(block.received_valid
                               ? ReplicaState::Held{block.received, hash_of(Which::received, i)}
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
  message_floats_ = 0;

  std::vector<Unacknowledged> again;
  for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
    BlockState& block = blocks_[i];
    const ReplicaState::Held& held = state.blocks[i];
    if (block.keyframe_owed) continue;
    if (held.version == block.published) {
      if (held.hash != hash_of(Which::published, i)) set_keyframe_owed(block, true);
      continue;
    }
    // Every version between what is held and what was published must still be kept.
    std::vector<Unacknowledged> chain;
    for (const Unacknowledged& kept : unacknowledged_)
      if (kept.block == i && kept.version > held.version) chain.push_back(kept);
    if (held.version != 0 && held.version + chain.size() == block.published)
      again.insert(again.end(), chain.begin(), chain.end());
    else
      set_keyframe_owed(block, true);
  }
  unacknowledged_ = std::move(again);

  // The last turn was not heard to its end, or we are in the middle of one: say the lost part
  // again.
  const bool unheard = std::exchange(resend_turn_, false);
  if (speaking_ || unheard) {
    std::vector<Unacknowledged> resend;
    resend.swap(unacknowledged_);
    for (Unacknowledged& kept : resend) {
      if (message_.empty()) message_.resize(turn_header_bytes);
      message_.insert(message_.end(), kept.record.begin(), kept.record.end());
      ++message_records_;
      message_floats_ += schema_.blocks()[kept.block].size;
      ++counters_.deltas_resent;
      unacknowledged_.push_back(std::move(kept));
      if (is_full()) flush(false, now);
    }
    if (unheard) {
      for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
        if (!blocks_[i].keyframe_owed) continue;
        append(i, Codec{CodecId::keyframe, 0}, Replica::Look(published_, schema_.blocks()[i]));
        if (is_full()) flush(false, now);
      }
      flush(true, now);
    }
  }
  return std::nullopt;
}

void Link::close() {
  open_ = false;
  offends_ = clipped_ = false;
  if (guard_ != nullptr) guard_->close(peer_);
  awaiting_state_ = false;
  outbox_.clear();
  message_.clear();
  message_records_ = 0;
  message_floats_ = 0;
  hearing_ = false;
}

void Link::forget() {
  close();
  epoch_ = 0;
  spoken_ = heard_ = 0;
  published_.clear();
  received_.clear();
  blocks_.clear();
  unacknowledged_ = {};
  opened_ = {};
  heard_records_ = {};
  received_valid_ = keyframes_owed_ = 0;
  my_turn_ = speaking_ = false;
}

}  // namespace gossipd
