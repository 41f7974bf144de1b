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
  ready.epoch = epoch_->id;
  ready.spoken = epoch_->sender.spoken();
  ready.heard = epoch_->receiver.heard();
  ready.bf16 = asks_for_bf16(policy_, schema_.floats());
}

bool Link::orders(const Ready& theirs) const {
  const std::size_t blocks = schema_.blocks().size();
  const auto& flips = theirs.held_flips;
  return (theirs.first_block == 0 || theirs.first_block < blocks) &&
         std::adjacent_find(flips.begin(), flips.end(), std::greater_equal<>()) == flips.end() &&
         (flips.empty() || flips.back() < blocks);
}

bool Link::remembers(const Ready& mine, const Ready& theirs, std::uint32_t protocol) const {
  return epoch_->id != 0 && protocol == epoch_->protocol &&
         (mine.bf16 && theirs.bf16) == in_bf16() && mine.epoch == epoch_->id &&
         theirs.epoch == epoch_->id && mine.has_model && theirs.has_model &&
         schema_.blocks().size() <= replica_state_blocks_max &&
         reached(mine.spoken, theirs.heard) && reached(theirs.spoken, mine.heard) &&
         (mine.spoken == theirs.heard || theirs.spoken == mine.heard);
}

bool Link::open(const Ready& mine, const Ready& theirs, std::uint32_t protocol,
                const SharedModel& initial) {
  GOSSIPD_ASSERT(state_ == State::closed);
  if (remembers(mine, theirs, protocol)) {
    state_ = State::comparing;
    epoch_->sender.reconnect(theirs.heard < mine.spoken);
    return true;
  }
  GOSSIPD_ASSERT(orders(theirs));
  state_ = State::open;
  report_ = {};
  counters_.consensus_distance = 1;  // the other end may have come back with another model
  const bool speaks_first =
      mine.has_model == theirs.has_model ? raw(self_) < raw(peer_) : mine.has_model;
  epoch_.emplace(*this, mix_nonces(mine.nonce, theirs.nonce), protocol, speaks_first,
                 ReplicaPair(schema_, mine.bf16 && theirs.bf16));
  if (mine.initial != 0 && mine.initial == theirs.initial) {
    GOSSIPD_ASSERT(initial && initial->size() == schema_.floats());
    epoch_->replicas.begin_with(initial);
  }
  if (!theirs.has_model) epoch_->sender.set_order(order_of(theirs, schema_.blocks().size()));
  return false;
}

ReplicaState Link::replica_state() const {
  ReplicaState state;
  for (std::size_t i = 0; i < epoch_->replicas.size(); ++i) {
    const ReplicaPair::BlockState& block = epoch_->replicas.state(i);
    state.blocks.push_back(block.received_valid
                               ? ReplicaState::Held{block.received, hash_of(Which::received, i)}
                               : ReplicaState::Held{});
  }
  return state;
}

std::optional<Reject> Link::on_replica_state(std::span<const std::byte> message, Instant now) {
  ReplicaState held;
  if (state_ != State::comparing) return Reject::out_of_turn;
  if (const auto reject = decode_replica_state(message, schema_, held)) return reject;
  state_ = State::open;
  epoch_->receiver.reconnect();
  if (!epoch_->sender.resume(held, now)) forget();
  return std::nullopt;
}

void Link::close() {
  state_ = State::closed;
  epoch_->sender.disconnect();
  epoch_->receiver.disconnect();
  epoch_->mixer.disconnect();
}

void Link::forget() {
  close();
  epoch_.emplace(*this, 0, 0, false, ReplicaPair(schema_));
}

}  // namespace gossipd
