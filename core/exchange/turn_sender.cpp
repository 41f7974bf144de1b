#include "core/exchange/turn_sender.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/protocol.h"
#include "core/base/result.h"
#include "core/exchange/change.h"
#include "core/exchange/turn_bounds.h"

namespace gossipd {
namespace {

// Below it a sparse codec's overhead eats its gain.
constexpr std::size_t small_block_floats = 512;

}  // namespace

TurnSender::TurnSender(const Schema& schema, const ExchangePolicy& policy, std::uint32_t protocol,
                       ReplicaPair& replicas, ExchangeCounters& counters)
    : schema_(schema),
      policy_(policy),
      protocol_(protocol),
      replicas_(replicas),
      counters_(counters) {}

void TurnSender::begin(const Speech& speech, std::uint32_t turn) {
  GOSSIPD_ASSERT(!speaking_);
  speech_ = speech;
  speaking_ = true;
  turn_before_ = turn_;
  turn_ = turn;
  next_ = 0;
  bytes_before_turn_ = counters_.bytes_sent;
  unacknowledged_.clear();
  replicas_.begin_speaking();
  if (!speech.is_opening()) replicas_.set_contraction(speech.gain_self, speech.gain_peer);
}

void TurnSender::prepare(Saying& saying, std::size_t ahead, double change,
                         std::span<const float> model, std::span<const float> update) const {
  GOSSIPD_ASSERT(speaking_ && ahead < blocks_left());
  saying.block = static_cast<std::uint32_t>(block_ahead(ahead));
  if (!replicas_.state(saying.block).keyframe_owed && !(change > speech_.threshold)) {
    saying.finite = kernels().all_finite(model);
    return;
  }
  saying.values = std::make_unique_for_overwrite<float[]>(model.size());
  saying.target = {saying.values.get(), model.size()};
  saying.finite = kernels().sum(saying.target, model, update);
  // What bf16 cannot hold is not to be said: beside it a codec would pass over smaller changes, and
  // the same would be said for ever.
  if (saying.finite) replicas_.round(saying.target);
}

void TurnSender::encode(Saying& saying) {
  GOSSIPD_ASSERT(saying.finite);
  if (saying.target.empty()) return;
  const Block& block = schema_.blocks()[saying.block];
  const ReplicaPair::BlockState& state = replicas_.state(saying.block);
  if (state.keyframe_owed && !state.received_valid) return encode_whole(saying);
  Codec codec = codec_for(block);
  const bool mirrored = state.keyframe_owed;
  if (mirrored) {
    replicas_.publish_received(saying.block);
    encode_record(saying, Codec{CodecId::mirror, 0}, {});
    codec = block.kind == SegmentKind::statistic ? codec : policy_.consensus_codec;
  }
  const Replica::Look look = replicas_.published(saying.block);
  const std::span<const float> published = look;
  // After a mirror a small rest can wait for the next delta.
  if ((speech_.threshold >= 0 && std::ranges::equal(saying.target, published)) ||
      (mirrored &&
       !(relative(kernels().distance(saying.target, published), block.size) > speech_.threshold)))
    return;
  if (mirrored) return encode_record(saying, codec, saying.target);
  if (const auto last = counted(codec, saying.target, published))
    encode_record(saying, *last, saying.target);
}

std::optional<Codec> TurnSender::counted(Codec codec, std::span<const float> target,
                                         std::span<const float> published) const {
  if (codec.id != CodecId::top_k || speech_.entry_cut <= 0) return codec;
  const std::size_t changed = kernels().count_apart(target, published, speech_.entry_cut);
  const std::size_t keep = (changed * top_k_chunk + target.size() / 2) / target.size();
  if (keep == 0) return std::nullopt;
  codec.keep = static_cast<std::uint16_t>(std::min(keep, top_k_keep_useful));
  return codec;
}

// Quantised if the policy says so: what that loses is in the next delta. Statistics and small
// blocks stay exact.
void TurnSender::encode_whole(Saying& saying) {
  const Block& block = schema_.blocks()[saying.block];
  const Codec codec = policy_.keyframe_codec;
  if (codec.id != CodecId::fp32 && block.kind == SegmentKind::parameter &&
      block.size >= small_block_floats) {
    replicas_.publish(saying.block, std::vector<float>(block.size, 0.0f));
    return encode_record(saying, codec, saying.target, true);
  }
  replicas_.publish(saying.block, saying.target);
  encode_record(saying, Codec{CodecId::keyframe, 0}, saying.target);
}

Codec TurnSender::codec_for(const Block& block) const {
  const CodecId id = speech_.codec.id;
  const bool coarse = id == CodecId::top_k || id == CodecId::ternary || id == CodecId::int4;
  if (block.kind == SegmentKind::statistic)
    return id == CodecId::fp32 ? speech_.codec : Codec{CodecId::bf16, 0};
  // That nothing has changed needs no more than an entry.
  if (speech_.threshold < 0 && block.size >= small_block_floats) return {CodecId::top_k, 1};
  return coarse && block.size < small_block_floats ? Codec{CodecId::int8, 0} : speech_.codec;
}

void TurnSender::encode_record(Saying& saying, Codec codec, std::span<const float> target,
                               bool fresh) {
  const std::uint32_t index = saying.block;
  TurnRecord header{
      .block = index,
      .version = replicas_.state(index).published + 1 + static_cast<Version>(saying.records.size()),
      .codec = codec,
      .fresh = fresh};
  const std::size_t head =
      turn_record_bytes +
      (is_whole(header) && protocol_ >= protocol_of_block_hashes ? turn_hash_bytes : 0);
  const std::size_t at = saying.bytes.size();
  saying.bytes.resize(at + head + encoded_size(codec, schema_.blocks()[index].size));
  const std::span<std::byte> record = std::span(saying.bytes).subspan(at);
  if (codec.id == CodecId::keyframe) {
    std::memcpy(record.data() + head, target.data(), target.size_bytes());
  } else if (codec.id != CodecId::mirror &&
             !replicas_.encode(index, codec, target, record.subspan(head))) {
    // Too large a step for the codec: the block goes whole.
    saying.bytes.resize(at);
    replicas_.publish(index, target);
    return encode_record(saying, Codec{CodecId::keyframe, 0}, target);
  }
  if (head > turn_record_bytes) {
    header.hash = kernels().hash(replicas_.published(index));
    std::memcpy(record.data() + turn_record_bytes, &*header.hash, turn_hash_bytes);
  }
  write_turn_record(record.first<turn_record_bytes>(), header);
  saying.records.push_back({header, record.size()});
}

void TurnSender::commit(const Saying& saying) {
  std::size_t at = 0;
  for (const auto& [header, size] : saying.records) {
    const std::span<const std::byte> record = std::span(saying.bytes).subspan(at, size);
    at += size;
    Bytes& message = outgoing_.message;
    if (message.empty()) message.resize(turn_header_bytes);
    message.insert(message.end(), record.begin(), record.end());
    const bool whole = is_whole(header);
    replicas_.mark_said(header.block, whole);
    ++(whole ? counters_.keyframes_sent : counters_.deltas_sent);
    ++outgoing_.records;
    outgoing_.floats += schema_.blocks()[header.block].size;
    if (!whole || header.codec.id == CodecId::mirror)
      unacknowledged_.add(DeltaRecord{header.block, header.version, header.codec,
                                      Bytes(record.begin(), record.end())});
  }
}

void TurnSender::append(const DeltaRecord& record) {
  Bytes& message = outgoing_.message;
  if (message.empty()) message.resize(turn_header_bytes);
  message.insert(message.end(), record.bytes.begin(), record.bytes.end());
  ++outgoing_.records;
  outgoing_.floats += schema_.blocks()[record.block].size;
  ++counters_.deltas_resent;
}

void TurnSender::advance(Instant now) {
  ++next_;
  flush_if_full(now);
}

// The next record begins another message when this one says enough to go, or has no room for two
// more records, which is what a block has at most.
void TurnSender::flush_if_full(Instant now) {
  if (outgoing_.message.size() >= turn_message_fill_bytes ||
      outgoing_.floats >= turn_message_fill_floats ||
      outgoing_.records + turn_records_per_block_max > turn_records_max)
    flush(false, now);
}

void TurnSender::flush(bool last, Instant now) {
  Bytes& message = outgoing_.message;
  if (message.empty()) {
    if (!last) return;
    message.resize(turn_header_bytes);
  }
  const TurnHeader header{
      .last = last,
      .records = outgoing_.records,
      .turn = turn_,
      .gain_speaker = speech_.gain_self,
      .gain_listener = speech_.gain_peer,
      .weight = speech_.weight,
      .in_flight = speech_.in_flight,
      .step = speech_.step,
      .step_seconds = speech_.step_seconds,
      .snapshot_age_seconds = static_cast<float>(std::max(0.0, seconds(now - speech_.snapshot_at))),
      .loss = std::isfinite(speech_.loss)
                  ? static_cast<float>(std::clamp(speech_.loss, 0.0, static_cast<double>(loss_max)))
                  : 0.0f};
  write_turn_header(std::span(message).first<turn_header_bytes>(), header);
  counters_.bytes_sent += message.size();
  outgoing_.ready.push_back(std::make_shared<const Bytes>(std::move(message)));
  message = {};
  outgoing_.records = 0;
  outgoing_.floats = 0;
}

void TurnSender::end(Instant now) {
  GOSSIPD_ASSERT(speaking_ && is_done());
  flush(true, now);
  order_.clear();
  speaking_ = false;
  ++counters_.turns_spoken;
  counters_.turn_bytes = bytes_of_turn();
  counters_.threshold = speech_.threshold_shown;
  counters_.codec = speech_.codec;
  counters_.trust = speech_.trust;
}

void TurnSender::acknowledge() {
  if (policy_.outer_momentum > 0 && !unacknowledged_.empty()) std::swap(answered_, unacknowledged_);
  unacknowledged_.clear();
}

// Of each block the deltas that the peer does not hold, if it holds their base; else the block owes
// a keyframe.
void TurnSender::keep_what_peer_lacks(const ReplicaState& held_blocks) {
  SaidDeltas lacking;
  std::vector<std::vector<std::size_t>> kept_of(replicas_.size());
  for (std::size_t k = 0; k < unacknowledged_.all().size(); ++k)
    kept_of[unacknowledged_.all()[k].block].push_back(k);
  for (std::uint32_t i = 0; i < replicas_.size(); ++i) {
    const ReplicaPair::BlockState& state = replicas_.state(i);
    const ReplicaState::Held& held = held_blocks.blocks[i];
    if (state.keyframe_owed) continue;
    if (held.version == state.published) {
      if (held.hash != replicas_.hash_of(ReplicaPair::Which::published, i, !may_repeat()))
        replicas_.owe_keyframe(i);
      continue;
    }
    std::vector<DeltaRecord> chain;
    for (const std::size_t k : kept_of[i])
      if (unacknowledged_.all()[k].version > held.version)
        chain.push_back(unacknowledged_.all()[k]);
    if (held.version == 0 || held.version + chain.size() != state.published)
      replicas_.owe_keyframe(i);
    else
      for (DeltaRecord& record : chain) lacking.add(std::move(record));
  }
  unacknowledged_ = std::move(lacking);
}

bool TurnSender::resume(const ReplicaState& held, Instant now) {
  outgoing_ = {};
  keep_what_peer_lacks(held);
  const bool unheard = std::exchange(last_turn_unheard_, false);
  if (!speaking_ && !unheard) return true;
  if (unheard && sizeof(float) * floats_owed() > policy_.bulk_window_bytes) return false;
  for (const DeltaRecord& record : unacknowledged_.all()) {
    append(record);
    flush_if_full(now);
  }
  if (!unheard) return true;  // in the middle of a turn: it goes on
  for (std::uint32_t i = 0; i < replicas_.size(); ++i) {
    if (!replicas_.state(i).keyframe_owed) continue;
    Saying saying{.block = i};
    encode_record(saying, Codec{CodecId::keyframe, 0}, replicas_.published(i));
    commit(saying);
    flush_if_full(now);
  }
  flush(true, now);
  return true;
}

std::uint64_t TurnSender::floats_owed() const {
  std::uint64_t floats = 0;
  for (std::uint32_t i = 0; i < replicas_.size(); ++i)
    if (replicas_.state(i).keyframe_owed) floats += schema_.blocks()[i].size;
  return floats;
}

const DeltaRecord* TurnSender::said(std::size_t block, Version version) const {
  return (speaking_ ? unacknowledged_ : answered_).find(block, version);
}

std::vector<SharedBytes> TurnSender::take_messages() {
  std::vector<SharedBytes> messages(outgoing_.ready.begin(), outgoing_.ready.end());
  outgoing_.ready.clear();
  return messages;
}

}  // namespace gossipd
