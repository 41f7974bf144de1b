// One end's speaking, without a peer.
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/unit/core_turn_support.h"

using namespace gossipd;

namespace {

using Which = ReplicaPair::Which;

std::vector<float> ramp(float from) {
  std::vector<float> model(604);
  std::iota(model.begin(), model.end(), from);
  return model;
}

// What a peer would say that holds exactly these versions.
ReplicaState held_by_peer(const OneEnd& end, std::vector<Version> versions) {
  ReplicaState state;
  for (std::size_t i = 0; i < versions.size(); ++i)
    state.blocks.push_back({versions[i], end.hash(Which::published, i)});
  return state;
}

}  // namespace

TEST_CASE("a first turn says every block whole, with its hash, in the order asked for") {
  OneEnd end;
  end.sender.set_order({1, 0});
  const auto messages = end.speak(1, ramp(0), 1);
  REQUIRE(messages.size() == 1);
  TurnHeader header;
  const auto records = records_of(end.schema, messages[0], header);
  CHECK(header.last);
  CHECK(header.turn == 1);
  REQUIRE(records.size() == 2);
  CHECK(records[0].block == 1);
  CHECK(records[0].codec.id == CodecId::keyframe);  // small: exact
  CHECK(records[1].codec.id == end.policy.keyframe_codec.id);
  for (const TurnRecord& record : records)
    CHECK(record.hash == end.hash(Which::published, record.block));
  CHECK(end.replicas.keyframes_owed() == 0);
  CHECK(end.sender.spoken() == 1);
  CHECK(end.counters.keyframes_sent == 2);
  CHECK(end.sender.bytes_of_turn() == messages[0]->size());
}

TEST_CASE("a block goes when its change exceeds the threshold, and an empty turn still ends") {
  OneEnd end;
  (void)end.speak(1, ramp(0), 1);
  const Speech speech{.codec = {CodecId::fp32}, .threshold = 0.1};
  TurnHeader header;
  CHECK(records_of(end.schema, end.speak(3, ramp(1), 0.1, speech)[0], header).empty());
  CHECK(header.last);
  CHECK(header.turn == 3);
  const auto messages = end.speak(5, ramp(1), 0.2, speech);
  const auto records = records_of(end.schema, messages[0], header);
  REQUIRE(records.size() == 2);
  CHECK(records[1].version == 2);
  CHECK_FALSE(records[1].hash);
}

TEST_CASE("a model that is not finite is not said") {
  OneEnd end;
  std::vector<float> model = ramp(0);
  model[3] = std::numeric_limits<float>::infinity();
  end.sender.begin({.codec = {CodecId::fp32}}, 1);
  CHECK_FALSE(end.prepared(model, 1).finite);
  CHECK(end.replicas.state(0).published == 0);
}

TEST_CASE("the deltas of a turn are kept until the peer's answer begins, then for its momentum") {
  OneEnd end;
  (void)end.speak(1, ramp(0), 1);
  (void)end.speak(3, ramp(1), 1);
  CHECK(end.sender.said(0, 2) == nullptr);  // still what a reconnect would need
  end.sender.acknowledge();
  REQUIRE(end.sender.said(0, 2) != nullptr);
  CHECK(end.sender.said(0, 2)->codec.id == CodecId::fp32);
  CHECK(end.sender.said(0, 1) == nullptr);  // another version
}

TEST_CASE("after a reconnect the lost deltas are said again, with the same turn and gains") {
  OneEnd end;
  (void)end.speak(1, ramp(0), 1);
  end.sender.acknowledge();
  (void)end.speak(3, ramp(1), 1, {.codec = {CodecId::fp32}, .gain_self = 0.25f, .gain_peer = 0.5f});
  end.sender.disconnect();
  end.sender.reconnect(true);
  CHECK(end.sender.may_repeat());
  end.sender.resume(held_by_peer(end, {1, 2}), turn_time(1));  // it lacks block 0's only
  CHECK_FALSE(end.sender.may_repeat());
  const auto messages = end.sender.take_messages();
  REQUIRE(messages.size() == 1);
  TurnHeader header;
  const auto records = records_of(end.schema, messages[0], header);
  CHECK(header.last);
  CHECK(header.turn == 3);
  CHECK(header.gain_listener == 0.5f);
  REQUIRE(records.size() == 1);
  CHECK(records[0].block == 0);
  CHECK(records[0].version == 2);
  CHECK(end.counters.deltas_resent == 1);
}

TEST_CASE("a block whose base the peer does not hold, or holds otherwise, goes whole") {
  OneEnd end;
  (void)end.speak(1, ramp(0), 1);
  end.sender.acknowledge();
  (void)end.speak(3, ramp(1), 1);
  end.sender.acknowledge();  // so no delta is kept for a reconnect
  end.sender.disconnect();
  end.sender.reconnect(false);
  ReplicaState held = held_by_peer(end, {1, 2});
  held.blocks[1].hash ^= 1;
  end.sender.resume(held, turn_time(1));
  CHECK(end.replicas.keyframes_owed() == 2);
  CHECK(end.sender.take_messages().empty());  // the next turn says them
}

TEST_CASE("a lost session in the middle of a turn loses the messages, not the turn") {
  OneEnd end;
  (void)end.speak(1, ramp(0), 1);
  end.sender.acknowledge();
  end.sender.begin({.codec = {CodecId::fp32}}, 3);
  end.say_next(ramp(1), 1);
  end.sender.advance(turn_time(0));
  end.sender.disconnect();
  CHECK(end.sender.is_speaking());
  CHECK(end.sender.spoken() == 1);
  end.sender.reconnect(false);
  end.sender.resume(held_by_peer(end, {1, 1}), turn_time(1));
  CHECK(end.counters.deltas_resent == 1);
  end.say_next(ramp(1), 1);
  end.sender.advance(turn_time(1));
  end.sender.end(turn_time(1));
  TurnHeader header;
  CHECK(records_of(end.schema, end.sender.take_messages()[0], header).size() == 2);
  CHECK(end.sender.spoken() == 3);
}
