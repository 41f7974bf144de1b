// tests/unit/core_turn_support.h - one end of a link without its other end: replicas, counters, and
// messages made by hand.
#pragma once

#include <doctest/doctest.h>

#include <cstring>

#include "core/base/protocol.h"
#include "core/exchange/turn_receiver.h"
#include "core/exchange/turn_sender.h"

namespace gossipd {

// Two blocks: 600 floats, which may go quantised, and 4, which go exactly.
inline Schema turn_schema() {
  auto schema = Schema::build({{"weight", {600}, 0, 600, SegmentKind::parameter},
                               {"bias", {4}, 600, 4, SegmentKind::parameter}});
  REQUIRE(schema);
  return *schema;
}

inline Instant turn_time(double s) { return Instant{} + from_seconds(s); }

struct OneEnd {
  Schema schema = turn_schema();
  ExchangePolicy policy;
  ExchangeCounters counters;
  PeerReport report;
  ReplicaPair replicas{schema, false};
  TurnSender sender{schema, policy, protocol_version, replicas, counters};
  TurnReceiver receiver{schema, policy, protocol_version, replicas, counters, report};
  std::vector<float> update = std::vector<float>(schema.floats());

  // Says a whole turn about `model`; `change` is what a look has found in every block.
  std::vector<SharedBytes> speak(std::uint32_t turn, const std::vector<float>& model, double change,
                                 const Speech& speech = {.codec = {CodecId::fp32}}) {
    sender.begin(speech, turn);
    for (std::size_t said = 0; said < schema.blocks().size(); ++said) {
      say_next(model, change);
      sender.advance(turn_time(0));
    }
    sender.end(turn_time(0));
    return sender.take_messages();
  }
  void say_next(const std::vector<float>& model, double change) {
    TurnSender::Saying saying = prepared(model, change);
    REQUIRE(saying.finite);
    sender.encode(saying);
    sender.commit(saying);
  }
  [[nodiscard]] TurnSender::Saying prepared(const std::vector<float>& model, double change) const {
    const Block& block = schema.blocks()[sender.next_block()];
    TurnSender::Saying saying;
    sender.prepare(saying, 0, change, block.of(std::span<const float>(model)),
                   block.of(std::span<const float>(update)));
    return saying;
  }
  // What both ends would call the block.
  [[nodiscard]] std::uint64_t hash(ReplicaPair::Which which, std::size_t block) const {
    return replicas.hash_of(which, block, false);
  }
};

// The records of a turn's message, which must be well formed.
inline std::vector<TurnRecord> records_of(const Schema& schema, const SharedBytes& message,
                                          TurnHeader& header) {
  std::vector<TurnRecord> records;
  REQUIRE_FALSE(decode_turn(*message, schema, header, records));
  return records;
}

// A message with one record of block 1: four floats, as a keyframe or as a difference.
inline Bytes say_bias(std::uint32_t turn, Version version, CodecId codec,
                      std::array<float, 4> values, bool last = true) {
  TurnRecord record{.block = 1, .version = version, .codec = {codec, 0}};
  const bool whole = is_whole(record);
  if (whole) record.hash = kernels().hash(values);
  const std::size_t head = turn_record_bytes + (whole ? turn_hash_bytes : 0);
  Bytes message(turn_header_bytes + head + sizeof values);
  const std::span<std::byte> bytes(message);
  write_turn_header(bytes.first<turn_header_bytes>(), {.last = last,
                                                       .records = 1,
                                                       .turn = turn,
                                                       .weight = 2,
                                                       .in_flight = 3,
                                                       .step = 40,
                                                       .step_seconds = 0.5f,
                                                       .snapshot_age_seconds = 1,
                                                       .loss = 0.25f});
  write_turn_record(bytes.subspan<turn_header_bytes, turn_record_bytes>(), record);
  if (whole)
    std::memcpy(bytes.data() + turn_header_bytes + turn_record_bytes, &*record.hash,
                turn_hash_bytes);
  std::memcpy(bytes.data() + turn_header_bytes + head, values.data(), sizeof values);
  return message;
}

}  // namespace gossipd
