// One end's hearing: turns made by hand.
#include "tests/unit/core_turn_support.h"

using namespace gossipd;

namespace {

using Which = ReplicaPair::Which;

std::uint64_t hash_of(std::array<float, 4> values) { return kernels().hash(values); }

std::optional<Reject> hear(OneEnd& end, const Bytes& message, std::uint32_t turn) {
  return end.receiver.hear(message, turn, 0.5, turn_time(10));
}

}  // namespace

TEST_CASE("a keyframe and the delta after it become the replica, and the turn tells of the peer") {
  OneEnd end;
  REQUIRE_FALSE(hear(end, say_bias(1, 1, CodecId::keyframe, {1, 2, 3, 4}, false), 1));
  CHECK(end.receiver.is_hearing());
  CHECK(end.receiver.heard() == 0);
  REQUIRE_FALSE(hear(end, say_bias(1, 2, CodecId::fp32, {1, 0, 0, 1}), 1));
  CHECK_FALSE(end.receiver.is_hearing());
  CHECK(end.receiver.heard() == 1);
  CHECK(end.receiver.heard_opening());
  CHECK(end.hash(Which::received, 1) == hash_of({2, 2, 3, 5}));
  CHECK(end.replicas.valid() == 1);
  CHECK(end.receiver.blocks_heard() == std::vector<std::uint32_t>{1});
  CHECK(end.report.weight == 2);
  CHECK(end.report.in_flight == 3);
  CHECK(end.report.loss == 0.25);
  REQUIRE(end.report.received_at);
  // half a round trip and the snapshot's age ago
  CHECK(*end.report.received_at == turn_time(10 - 0.25 - 1));
  REQUIRE(end.receiver.heard_delta(1, 2) != nullptr);
  CHECK(end.receiver.heard_delta(1, 1) == nullptr);
}

TEST_CASE("a message that is out of turn or malformed changes nothing") {
  OneEnd end;
  const Bytes message = say_bias(2, 1, CodecId::keyframe, {1, 2, 3, 4});
  CHECK(hear(end, message, 0) == Reject::out_of_turn);  // it is not the peer's turn
  CHECK(hear(end, message, 4) == Reject::out_of_turn);
  CHECK(hear(end, Bytes(message.begin(), message.end() - 1), 2) == Reject::malformed);
  CHECK(end.replicas.valid() == 0);
  CHECK(end.counters.bytes_received == 0);
  CHECK(end.counters.refused_total() == 3);
  CHECK_FALSE(end.receiver.is_hearing());
  CHECK(end.receiver.take_resync().empty());
}

TEST_CASE("a record that does not fit asks for its block whole, which makes up for it") {
  OneEnd end;
  REQUIRE_FALSE(hear(end, say_bias(1, 1, CodecId::keyframe, {1, 2, 3, 4}), 1));
  end.replicas.owe_keyframe(1, false);
  REQUIRE_FALSE(hear(end, say_bias(3, 3, CodecId::fp32, {1, 0, 0, 1}), 3));  // version 2 is missing
  CHECK(end.counters.refused[raw(Reject::base_mismatch)] == 1);
  CHECK(end.replicas.valid() == 0);
  CHECK(end.replicas.state(1).keyframe_owed);  // so the peer does not mix it either
  CHECK(end.receiver.take_resync() == std::vector<std::uint32_t>{1});
  CHECK(end.receiver.take_resync().empty());
  REQUIRE_FALSE(hear(end, say_bias(5, 4, CodecId::keyframe, {5, 6, 7, 8}), 5));
  CHECK(end.hash(Which::received, 1) == hash_of({5, 6, 7, 8}));
  CHECK(end.replicas.valid() == 1);
}

TEST_CASE("a block that goes whole is taken only with the right hash") {
  OneEnd end;
  Bytes message = say_bias(1, 1, CodecId::keyframe, {1, 2, 3, 4});
  message.back() ^= std::byte{1};
  REQUIRE_FALSE(hear(end, message, 1));
  CHECK(end.counters.refused[raw(Reject::hash_mismatch)] == 1);
  CHECK(end.replicas.valid() == 0);
}

TEST_CASE("a delta may come twice after a reconnect, and only then") {
  for (const bool reconnected : {true, false}) {
    OneEnd end;
    REQUIRE_FALSE(hear(end, say_bias(1, 1, CodecId::keyframe, {1, 2, 3, 4}), 1));
    REQUIRE_FALSE(hear(end, say_bias(3, 2, CodecId::fp32, {1, 1, 1, 1}, false), 3));
    end.receiver.disconnect();
    CHECK_FALSE(end.receiver.is_hearing());
    if (reconnected) end.receiver.reconnect();
    REQUIRE_FALSE(hear(end, say_bias(3, 2, CodecId::fp32, {1, 1, 1, 1}), 3));
    CHECK(end.counters.deltas_duplicate == (reconnected ? 1 : 0));
    CHECK(end.counters.refused_total() == (reconnected ? 0 : 1));
    CHECK(end.hash(Which::received, 1) == hash_of({2, 3, 4, 5}));
    CHECK(end.replicas.valid() == (reconnected ? 1 : 0));
  }
}

TEST_CASE("a turn without an end is refused") {
  OneEnd end;
  REQUIRE_FALSE(hear(end, say_bias(1, 1, CodecId::keyframe, {1, 2, 3, 4}, false), 1));
  CHECK(hear(end, say_bias(1, 2, CodecId::keyframe, {1, 2, 3, 4}, false), 1) ==
        Reject::endless_turn);
}

TEST_CASE("a message that tells of more floats than one may is refused, whatever its bytes") {
  constexpr std::size_t most = turn_message_floats_max / block_floats_max;
  constexpr std::uint64_t floats = 2 * most * block_floats_max;
  auto schema = Schema::build({{"weight", {floats}, 0, floats, SegmentKind::parameter}});
  REQUIRE(schema);
  // 20 bytes for each block: "what I publish to you is what you published to me"
  const auto mirrors_of = [](std::size_t blocks) {
    Bytes message(turn_header_bytes + blocks * (turn_record_bytes + turn_hash_bytes));
    const std::span<std::byte> bytes(message);
    write_turn_header(bytes.first<turn_header_bytes>(),
                      {.last = true, .records = static_cast<std::uint16_t>(blocks), .turn = 1});
    for (std::size_t i = 0; i < blocks; ++i)
      write_turn_record(bytes.subspan(turn_header_bytes + i * (turn_record_bytes + turn_hash_bytes))
                            .first<turn_record_bytes>(),
                        {.block = static_cast<std::uint32_t>(i),
                         .version = 1,
                         .codec = {CodecId::mirror, 0},
                         .hash = 0});
    return message;
  };
  TurnHeader header;
  std::vector<TurnRecord> records;
  CHECK_FALSE(decode_turn(mirrors_of(most), *schema, header, records));
  CHECK(decode_turn(mirrors_of(most + 1), *schema, header, records) == Reject::too_large);

  ExchangePolicy policy;
  ExchangeCounters counters;
  PeerReport report;
  ReplicaPair replicas{*schema, false};
  TurnReceiver receiver{*schema, policy, protocol_version, replicas, counters, report};
  CHECK(receiver.hear(mirrors_of(2 * most), 1, 0, turn_time(0)) == Reject::too_large);
  CHECK_FALSE(receiver.is_hearing());
  CHECK(receiver.take_resync().empty());
  CHECK(counters.refused_total() == 1);
}
