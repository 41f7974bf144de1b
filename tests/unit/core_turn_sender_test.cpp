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

std::vector<float> published(const OneEnd& end) {
  const Replica::Look look = end.replicas.published(0);
  const std::span<const float> values = look;
  return {values.begin(), values.end()};
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

TEST_CASE("of a block in top_k as many entries go as have changed by more than the turn's cut") {
  OneEnd end;
  (void)end.speak(1, std::vector<float>(604), 1);
  std::vector<float> model(604);
  for (std::size_t i = 0; i < 600; i += 10) model[i] = 1;  // 60 of the 600 of the larger block
  model[5] = 0.25f;
  TurnHeader header;
  const auto codecs_of = [&](std::uint32_t turn, float cut) {
    const Speech speech{.codec = {CodecId::top_k, 64}, .entry_cut = cut};
    const auto messages = end.speak(turn, model, 1, speech);
    std::vector<Codec> codecs;
    for (const TurnRecord& record : records_of(end.schema, messages[0], header))
      codecs.push_back(record.codec);
    return codecs;
  };
  // 60 · 1024 / 600, rounded: all that are above 0.5. The small block has not changed.
  CHECK(codecs_of(3, 0.5f) == std::vector<Codec>{{CodecId::top_k, 102}});
  for (std::size_t i = 0; i < 600; i += 10) CHECK(published(end)[i] == 1);
  CHECK(published(end)[5] == 0);
  CHECK(codecs_of(5, 0.5f).empty());  // nothing is above it any more
  CHECK(codecs_of(7, 0.2f) == std::vector<Codec>{{CodecId::top_k, 2}});
  CHECK(published(end)[5] == 0.25f);
}

TEST_CASE("without a cut the codec's number goes, and never more than a quarter by a cut") {
  OneEnd end;
  (void)end.speak(1, std::vector<float>(604), 1);
  TurnHeader header;
  Speech speech{.codec = {CodecId::top_k, 32}};
  CHECK(records_of(end.schema, end.speak(3, ramp(1), 1, speech)[0], header)[0].codec.keep == 32);
  speech.entry_cut = 0.5f;
  CHECK(records_of(end.schema, end.speak(5, ramp(9), 1, speech)[0], header)[0].codec.keep == 256);
  speech.codec = {CodecId::ternary};
  CHECK(records_of(end.schema, end.speak(7, ramp(19), 1, speech)[0], header)[0].codec ==
        Codec{CodecId::ternary});
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
  REQUIRE(end.sender.resume(held_by_peer(end, {1, 2}), turn_time(1)));  // it lacks block 0's only
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
  REQUIRE(end.sender.resume(held, turn_time(1)));
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
  REQUIRE(end.sender.resume(held_by_peer(end, {1, 1}), turn_time(1)));
  CHECK(end.counters.deltas_resent == 1);
  end.say_next(ramp(1), 1);
  end.sender.advance(turn_time(1));
  end.sender.end(turn_time(1));
  TurnHeader header;
  CHECK(records_of(end.schema, end.sender.take_messages()[0], header).size() == 2);
  CHECK(end.sender.spoken() == 3);
}

TEST_CASE("what is more than may wait for the socket is not said again at once") {
  OneEnd end;
  (void)end.speak(1, ramp(0), 1);
  for (const std::size_t window : {std::size_t{1000}, std::size_t{4000}}) {
    end.policy.bulk_window_bytes = window;
    end.sender.disconnect();
    end.sender.reconnect(true);
    CHECK(end.sender.resume(held_by_peer(end, {0, 0}), turn_time(1)) == (window == 4000));
    std::size_t bytes = 0;
    for (const SharedBytes& message : end.sender.take_messages()) bytes += message->size();
    CHECK((bytes == 0) == (window == 1000));
    CHECK(bytes <= window);
  }
}
