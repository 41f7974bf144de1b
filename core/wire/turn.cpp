#include "core/wire/turn.h"

#include <cmath>

#include "core/wire/bytes.h"

namespace gossipd {
namespace {

constexpr std::uint8_t flag_fresh = 1, flag_hash = 2;
// the largest minibatch that a setting allows, over a job's smallest
constexpr float weight_max = 1e6f;

}  // namespace

void write_turn_header(std::span<std::byte, turn_header_bytes> out, const TurnHeader& h) {
  Bytes bytes;
  bytes.reserve(turn_header_bytes);
  ByteWriter w(bytes);
  w.put(raw(BulkKind::turn));
  w.put(static_cast<std::uint8_t>(h.last ? 1 : 0));
  w.put(h.records);
  w.put(h.turn);
  w.put(h.gain_speaker);
  w.put(h.gain_listener);
  w.put(h.weight);
  w.put(h.in_flight);
  w.put(h.step);
  w.put(h.step_seconds);
  w.put(h.snapshot_age_seconds);
  w.put(h.loss);
  std::memcpy(out.data(), bytes.data(), turn_header_bytes);
}

void write_turn_record(std::span<std::byte, turn_record_bytes> out, const TurnRecord& record) {
  const auto flags =
      static_cast<std::uint8_t>((record.fresh ? flag_fresh : 0) | (record.hash ? flag_hash : 0));
  std::memcpy(out.data(), &record.block, 4);
  std::memcpy(out.data() + 4, &record.version, 4);
  std::memcpy(out.data() + 8, &record.codec.id, 1);
  std::memcpy(out.data() + 9, &flags, 1);
  std::memcpy(out.data() + 10, &record.codec.keep, 2);
}

Bytes encode_replica_state(const ReplicaState& state) {
  Bytes bytes;
  bytes.reserve(8 + 12 * state.blocks.size());
  ByteWriter w(bytes);
  w.put(raw(BulkKind::replica_state));
  w.put(std::uint8_t{0});
  w.put(std::uint16_t{0});
  w.put(static_cast<std::uint32_t>(state.blocks.size()));
  for (const auto& held : state.blocks) {
    w.put(held.version);
    w.put(held.hash);
  }
  return bytes;
}

std::optional<BulkKind> bulk_kind(std::span<const std::byte> message) {
  if (message.empty() || message.size() > bulk_message_bytes_max) return std::nullopt;
  const auto kind = static_cast<std::uint8_t>(message[0]);
  if (kind != raw(BulkKind::turn) && kind != raw(BulkKind::replica_state)) return std::nullopt;
  return static_cast<BulkKind>(kind);
}

std::optional<Reject> decode_turn(std::span<const std::byte> message, const Schema& schema,
                                  TurnHeader& h, std::vector<TurnRecord>& records) {
  if (message.size() > bulk_message_bytes_max) return Reject::too_large;
  ByteReader in(message);
  if (in.get<std::uint8_t>() != raw(BulkKind::turn)) return Reject::malformed;
  const auto flags = in.get<std::uint8_t>();
  h.last = (flags & 1) != 0;
  h.records = in.get<std::uint16_t>();
  h.turn = in.get<std::uint32_t>();
  h.gain_speaker = in.get<float>();
  h.gain_listener = in.get<float>();
  h.weight = in.get<float>();
  h.in_flight = in.get<std::uint32_t>();
  h.step = in.get<Step>();
  h.step_seconds = in.get<float>();
  h.snapshot_age_seconds = in.get<float>();
  h.loss = in.get<float>();
  if (!in.ok() || (flags & ~1) != 0 || h.records > turn_records_max) return Reject::malformed;
  const auto sane = [](float x, float most) { return std::isfinite(x) && x >= 0 && x <= most; };
  if (!sane(h.gain_speaker, 1) || !sane(h.gain_listener, 1) || !sane(h.weight, weight_max))
    return Reject::bad_gain;
  if (!sane(h.step_seconds, 1e9f) || !sane(h.snapshot_age_seconds, 1e9f) || !sane(h.loss, loss_max))
    return Reject::malformed;
  records.clear();
  std::size_t floats = 0;
  for (std::uint16_t i = 0; i < h.records; ++i) {
    TurnRecord record;
    record.block = in.get<std::uint32_t>();
    record.version = in.get<Version>();
    const auto codec = in.get<std::uint8_t>();
    const auto record_flags = in.get<std::uint8_t>();
    record.codec.keep = in.get<std::uint16_t>();
    if (!in.ok() || (record_flags & ~(flag_fresh | flag_hash)) != 0 || codec > raw(CodecId::top_k))
      return Reject::malformed;
    record.codec.id = static_cast<CodecId>(codec);
    record.fresh = (record_flags & flag_fresh) != 0;
    if (record.fresh && record.codec.id != CodecId::int8 && record.codec.id != CodecId::bf16)
      return Reject::malformed;
    if (record.block >= schema.blocks().size()) return Reject::unknown_block;
    if (record.codec.id == CodecId::top_k &&
        (record.codec.keep == 0 || record.codec.keep > top_k_keep_max))
      return Reject::malformed;
    if ((record_flags & flag_hash) != 0) {
      if (!is_whole(record)) return Reject::malformed;
      record.hash = in.get<std::uint64_t>();
    }
    const std::size_t size = schema.blocks()[record.block].size;
    floats += size;
    if (floats > turn_message_floats_max) return Reject::too_large;
    record.payload = in.take(encoded_size(record.codec, size));
    if (!in.ok()) return Reject::malformed;
    records.push_back(record);
  }
  if (!in.empty()) return Reject::malformed;
  return std::nullopt;
}

std::optional<Reject> decode_replica_state(std::span<const std::byte> message, const Schema& schema,
                                           ReplicaState& state) {
  ByteReader in(message);
  if (in.get<std::uint8_t>() != raw(BulkKind::replica_state)) return Reject::malformed;
  (void)in.get<std::uint8_t>();
  (void)in.get<std::uint16_t>();
  const auto count = in.get<std::uint32_t>();
  if (!in.ok() || count != schema.blocks().size()) return Reject::foreign_schema;
  state.blocks.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    ReplicaState::Held held;
    held.version = in.get<Version>();
    held.hash = in.get<std::uint64_t>();
    if (!in.ok()) return Reject::malformed;
    state.blocks.push_back(held);
  }
  return in.empty() ? std::nullopt : std::optional(Reject::malformed);
}

}  // namespace gossipd
