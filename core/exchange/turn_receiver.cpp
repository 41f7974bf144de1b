#include "core/exchange/turn_receiver.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/protocol.h"
#include "core/wire/control.h"

namespace gossipd {
namespace {

Reject to_reject(ApplyError error) {
  switch (error) {
    case ApplyError::not_finite: return Reject::not_finite;
    case ApplyError::too_large: return Reject::absurd_magnitude;
    default: return Reject::malformed;
  }
}

}  // namespace

TurnReceiver::TurnReceiver(const Schema& schema, const ExchangePolicy& policy,
                           std::uint32_t protocol, ReplicaPair& replicas,
                           ExchangeCounters& counters, PeerReport& report, Workers* workers)
    : schema_(schema),
      policy_(policy),
      protocol_(protocol),
      replicas_(replicas),
      counters_(counters),
      report_(report),
      workers_(workers) {}

std::optional<Reject> TurnReceiver::admit(std::span<const std::byte> message, std::uint32_t turn,
                                          TurnHeader& header, std::vector<TurnRecord>& records) {
  if (const auto reject = decode_turn(message, schema_, header, records)) return reject;
  if (turn == 0 || header.turn != turn) return Reject::out_of_turn;
  if (!hearing_) bounds_.begin(replicas_.size());
  return bounds_.admit(header, records);
}

std::optional<Reject> TurnReceiver::hear(std::span<const std::byte> message, std::uint32_t turn,
                                         double rtt_seconds, Instant now) {
  TurnHeader header;
  std::vector<TurnRecord> records;
  if (const auto reject = admit(message, turn, header, records)) {
    ++counters_.refused[raw(*reject)];
    return reject;
  }
  counters_.bytes_received += message.size();
  hearing_ = !header.last;
  if (std::exchange(hearing_turn_, header.turn) != header.turn) {
    deltas_.clear();
    replicas_.begin_hearing();
  }
  blocks_heard_.clear();
  take_all(records);
  for (const TurnRecord& record : records) blocks_heard_.push_back(record.block);
  report_.weight = header.weight;
  report_.in_flight = std::max<std::uint32_t>(header.in_flight, 1);
  report_.step_seconds = header.step_seconds;
  report_.heard_at =
      now - from_seconds(rtt_seconds / 2 + static_cast<double>(header.snapshot_age_seconds));
  if (!header.last) return std::nullopt;
  report_.loss = static_cast<double>(header.loss);
  report_.received_at = report_.heard_at;
  repeats_ = false;
  last_ = header;
  ++counters_.turns_heard;
  return std::nullopt;
}

// As many records at once as name different blocks: a block's second one needs its first.
void TurnReceiver::take_all(std::span<const TurnRecord> records) {
  while (!records.empty()) {
    std::vector<Taking> taking;
    std::unordered_set<std::uint32_t> blocks;
    for (const TurnRecord& record : records) {
      if (!blocks.insert(record.block).second) break;
      taking.push_back({.record = &record});
    }
    for_each(workers_, taking.size(), [&](std::size_t i) { take(taking[i]); });
    for (const Taking& one : taking) commit(one);
    records = records.subspan(taking.size());
  }
}

void TurnReceiver::take(Taking& taking) {
  const TurnRecord& record = *taking.record;
  replicas_.contract(record.block);
  const ReplicaPair::BlockState& state = replicas_.state(record.block);
  const bool whole = is_whole(record);
  // Said again after a reconnect: only then may a delta come twice.
  taking.duplicate = !whole && repeats_ && state.received_valid && record.version <= state.received;
  if (!taking.duplicate) taking.reject = whole ? take_whole(record) : take_delta(record);
}

void TurnReceiver::commit(const Taking& taking) {
  const TurnRecord& record = *taking.record;
  if (taking.duplicate) {
    ++counters_.deltas_duplicate;
    return replicas_.mark_heard_again(record.block);
  }
  if (taking.reject) return refuse(record.block, *taking.reject);
  const bool whole = is_whole(record);
  ++(whole ? counters_.keyframes_applied : counters_.deltas_applied);
  replicas_.mark_heard(record.block, record.version, whole);
  if (!whole && policy_.outer_momentum > 0)
    deltas_[record.block] = DeltaRecord{record.block, record.version, record.codec,
                                        Bytes(record.payload.begin(), record.payload.end())};
}

std::optional<Reject> TurnReceiver::take_delta(const TurnRecord& record) {
  const ReplicaPair::BlockState& state = replicas_.state(record.block);
  if (!state.received_valid || record.version != state.received + 1) return Reject::base_mismatch;
  if (const ApplyError error = replicas_.apply(record.block, record.codec, record.payload,
                                               static_cast<float>(policy_.guard.magnitude_max));
      error != ApplyError::none)
    return to_reject(error);
  return std::nullopt;
}

std::optional<Reject> TurnReceiver::take_whole(const TurnRecord& record) {
  if (record.hash.has_value() != (protocol_ >= protocol_of_block_hashes)) return Reject::malformed;
  std::vector<float> decoded(schema_.blocks()[record.block].size, 0.0f);
  if (record.codec.id == CodecId::mirror) {
    if (replicas_.state(record.block).keyframe_owed) return Reject::base_mismatch;
    const Replica::Look own = replicas_.published(record.block);
    std::ranges::copy(std::span<const float>(own), decoded.begin());
  } else if (const ApplyError error =
                 apply(record.codec, record.payload, decoded, keyframe_magnitude_max);
             error != ApplyError::none) {
    return to_reject(error);
  }
  replicas_.round(decoded);
  if (record.hash && kernels().hash(decoded) != *record.hash) return Reject::hash_mismatch;
  replicas_.receive(record.block, decoded);
  return std::nullopt;
}

void TurnReceiver::refuse(std::size_t block, Reject reason) {
  ++counters_.refused[raw(reason)];
  replicas_.invalidate(block);
  // So that both ends know that the block is not mixed in this exchange.
  replicas_.owe_keyframe(block);
  if (resync_.size() < resync_blocks_max) resync_.push_back(static_cast<std::uint32_t>(block));
}

void TurnReceiver::reconnect() {
  hearing_ = false;
  repeats_ = true;
}

const DeltaRecord* TurnReceiver::heard_delta(std::size_t block, Version version) const {
  const auto found = deltas_.find(static_cast<std::uint32_t>(block));
  return found == deltas_.end() || found->second.version != version ? nullptr : &found->second;
}

}  // namespace gossipd
