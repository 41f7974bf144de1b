// core/wire/turn.h - the bulk messages of a link: pieces of a turn, and what a replica holds.
//
// A turn is one or more messages, each a header and whole block records; the last one has
// `last` set. All fields little-endian, packed:
//
//     header: u8 kind = 1 | u8 flags (1 = last) | u16 records | u32 turn |
//             f32 gain_speaker | f32 gain_listener | f32 weight | u32 in_flight | u64 step |
//             f32 step_seconds | f32 snapshot_age_seconds | f32 loss
//     record: u32 block | u32 version | u8 codec | u8 flags (1 = fresh, 2 = hash) | u16 keep |
//             u64 hash, if flagged | payload of encoded_size(codec, floats)
//
// `version` is the block's version after the record. A delta needs the version before it as its
// base; a keyframe or a mirror needs none; a fresh record (int8 or bf16: a keyframe in fewer bytes)
// starts from zeros. From protocol 3 on these three carry the XXH3-64 of the floats that the block
// then holds.
//
// A replica state, sent after a reconnect:
//
//     header: u8 kind = 2 | u8 0 | u16 0 | u32 blocks
//     block:  u32 version (0 = nothing held) | u64 XXH3-64 of its floats
#pragma once

#include "core/codec/codec.h"
#include "core/model/schema.h"
#include "core/wire/reject.h"

namespace gossipd {

inline constexpr std::size_t bulk_message_bytes_max = std::size_t{1} << 20;
inline constexpr std::size_t turn_header_bytes = 44;
inline constexpr float loss_max = 1e9f;  // of a turn's header; larger ones are sent as this
inline constexpr std::size_t turn_weight_offset = 16;  // in the header
inline constexpr std::size_t turn_record_bytes = 12;
inline constexpr std::size_t turn_hash_bytes = 8;  // more, of a record with a hash
// a message is sent once it holds so much
inline constexpr std::size_t turn_message_fill_bytes = 60 * 1024;
// … or tells of so many floats, however few bytes say it
inline constexpr std::size_t turn_message_fill_floats = std::size_t{1} << 18;
// What fills a message less a float, and a block in two records after it: more than that no sender
// says at once, and hearing it, which is done in one piece, is bounded by it.
inline constexpr std::size_t turn_message_floats_max =
    turn_message_fill_floats + 2 * block_floats_max;
inline constexpr std::size_t turn_records_max = 4096;
// A state of the largest model must fit a message; larger ones resync by keyframes.
inline constexpr std::size_t replica_state_blocks_max = (bulk_message_bytes_max - 8) / 12;

enum class BulkKind : std::uint8_t { turn = 1, replica_state = 2 };

struct TurnHeader {
  bool last = false;
  std::uint16_t records = 0;
  std::uint32_t turn = 0;
  float gain_speaker = 0;  // of the transfer this turn causes, at its speaker …
  // … and at its listener; both 0: the turn opens an exchange and wants an answer
  float gain_listener = 0;
  float weight = 1;  // the speaker's, for the gains of the next turn
  // exchanges that the speaker has opened and that are not answered yet, this one included
  std::uint32_t in_flight = 1;
  Step step = 0;  // at which the speaker took the snapshot it speaks of
  float step_seconds = 0;
  float snapshot_age_seconds = 0;  // when this message was made
  float loss = 0;  // the speaker's smoothed training loss at that step; 0: not known
};

struct TurnRecord {
  std::uint32_t block = 0;
  Version version = 0;
  Codec codec;
  bool fresh = false;  // the payload is a difference to zeros, not to the replica
  // of the block after the record, which stands on nothing before it
  std::optional<std::uint64_t> hash{};
  std::span<const std::byte> payload;  // into the message
};

struct ReplicaState {
  struct Held {
    Version version = 0;
    std::uint64_t hash = 0;
  };
  std::vector<Held> blocks;
};

void write_turn_header(std::span<std::byte, turn_header_bytes> out, const TurnHeader&);
// Without the payload; of the record's hash only that there is one.
void write_turn_record(std::span<std::byte, turn_record_bytes> out, const TurnRecord&);
[[nodiscard]] inline bool is_whole(const TurnRecord& record) {
  return record.fresh || record.codec.id == CodecId::mirror || record.codec.id == CodecId::keyframe;
}
[[nodiscard]] Bytes encode_replica_state(const ReplicaState&);

[[nodiscard]] std::optional<BulkKind> bulk_kind(std::span<const std::byte> message);
// Fills header and records after checking every length against the schema; payload contents are
// checked by apply(). nullopt = well formed. Reject::too_large: too many bytes or floats.
[[nodiscard]] std::optional<Reject> decode_turn(std::span<const std::byte> message, const Schema&,
                                                TurnHeader&, std::vector<TurnRecord>&);
[[nodiscard]] std::optional<Reject> decode_replica_state(std::span<const std::byte> message,
                                                         const Schema&, ReplicaState&);

}  // namespace gossipd
