// Control messages, turns and ids on the wire: what goes in comes out, and nonsense is refused.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/random.h"
#include "core/wire/control.h"
#include "core/wire/turn.h"

using namespace gossipd;

namespace {

Schema two_blocks() {
  auto schema = Schema::build({Segment{"weight", {30, 10}, 0, 300, SegmentKind::parameter},
                               Segment{"steps", {2}, 300, 2, SegmentKind::local},
                               Segment{"mean", {20}, 302, 20, SegmentKind::statistic}});
  REQUIRE(schema);
  return *schema;
}

// With `hash`, those that go whole carry it.
Bytes turn_with(const std::vector<std::pair<std::uint32_t, Codec>>& records, const Schema& schema,
                TurnHeader header = {}, std::optional<std::uint64_t> hash = {}) {
  Bytes message(turn_header_bytes);
  for (const auto& [block, codec] : records) {
    TurnRecord record{.block = block, .version = 7, .codec = codec};
    if (is_whole(record)) record.hash = hash;
    const std::size_t at = message.size(),
                      head = turn_record_bytes + (record.hash ? turn_hash_bytes : 0);
    message.resize(at + head + encoded_size(codec, schema.blocks()[block].size));
    write_turn_record(std::span(message).subspan(at).first<turn_record_bytes>(), record);
    if (record.hash)
      std::memcpy(message.data() + at + turn_record_bytes, &*record.hash, turn_hash_bytes);
  }
  header.records = static_cast<std::uint16_t>(records.size());
  write_turn_header(std::span(message).first<turn_header_bytes>(), header);
  return message;
}

}  // namespace

namespace {

MemberRecord full_record() {
  MemberRecord record;
  record.id = NodeId{0xfedcba9876543210};
  record.name = "box1";
  record.address = Endpoint{"2001:db8::1", 7610};
  record.incarnation = 3;
  record.state = MemberState::failed;
  record.tick = 99;
  record.phase = Phase::finishing;
  record.samples = std::uint64_t{1} << 60;
  record.step = 12345;
  record.samples_per_second = 512;
  record.batch = 64;
  record.loss = 0.25;
  record.consensus_distance = 0.5;
  return record;
}

}  // namespace

TEST_CASE("records, stats, suspicions and digests come out as they went in") {
  const MemberRecord record = full_record();
  const auto back = decode_control(encode_control(Members{{record, record}}));
  REQUIRE(back);
  const auto& members = std::get<Members>(*back);
  REQUIRE(members.records.size() == 2);
  const MemberRecord& other = members.records[1];
  CHECK(other.id == record.id);
  CHECK(other.address == record.address);
  CHECK(other.state == record.state);
  CHECK(other.phase == record.phase);
  CHECK(other.samples == record.samples);
  CHECK(other.samples_per_second == 512);
  CHECK(other.consensus_distance == 0.5);

  MemberStats aged = stats_of(record);
  aged.age_seconds = 0.125;
  const auto told = std::get<Members>(
      *decode_control(encode_control(Members{{}, {aged}, {Suspicion{NodeId{5}, 6, NodeId{7}}}})));
  REQUIRE((told.records.empty() && told.stats.size() == 1 && told.suspicions.size() == 1));
  CHECK((told.stats[0].id == record.id && told.stats[0].samples == record.samples &&
         told.stats[0].batch == 64 && told.stats[0].consensus_distance == 0.5 &&
         told.stats[0].age_seconds == 0.125));
  CHECK((told.suspicions[0].id == NodeId{5} && told.suspicions[0].incarnation == 6 &&
         told.suspicions[0].by == NodeId{7}));
  CHECK_FALSE(decode_control(encode_control(
      Members{{}, std::vector<MemberStats>(stats_per_message_max + 1, stats_of(record)), {}})));
  CHECK_FALSE(decode_control(
      encode_control(Members{{}, {}, std::vector<Suspicion>(suspicions_per_message_max + 1)})));
  CHECK(std::get<Digest>(*decode_control(encode_control(Digest{{1, ~std::uint64_t{0}}}))).buckets ==
        std::vector<std::uint64_t>{1, ~std::uint64_t{0}});
  CHECK_FALSE(decode_control(encode_control(Digest{{}})));
  CHECK_FALSE(
      decode_control(encode_control(Digest{std::vector<std::uint64_t>(digest_buckets_max + 1)})));
}

TEST_CASE("every other control message comes out as it went in") {
  const Hello hello{1, ClusterId{2}, NodeId{3}, 4, "name", Endpoint{"host", 5}, JobHash{6}, true};
  const auto hello_back = std::get<Hello>(*decode_control(encode_control(hello)));
  CHECK(hello_back.protocol == 1);
  CHECK(hello_back.cluster == ClusterId{2});
  CHECK(hello_back.id == NodeId{3});
  CHECK(hello_back.incarnation == 4);
  CHECK(hello_back.address == Endpoint{"host", 5});
  CHECK(hello_back.job == JobHash{6});
  CHECK(hello_back.leaving);
  CHECK(hello_back.name == "name");

  const auto ready = std::get<Ready>(*decode_control(encode_control(Ready{.schema = SchemaHash{1},
                                                                          .has_model = true,
                                                                          .nonce = 2,
                                                                          .epoch = 3,
                                                                          .spoken = 4,
                                                                          .heard = 5,
                                                                          .bf16 = true,
                                                                          .initial = 6,
                                                                          .initial_age = 7})));
  CHECK((ready.has_model && ready.nonce == 2 && ready.epoch == 3 && ready.spoken == 4 &&
         ready.heard == 5 && ready.bf16 && ready.initial == 6 && ready.initial_age == 7));
  CHECK(std::get<Resync>(*decode_control(encode_control(Resync{{1, 2, 3}}))).blocks ==
        std::vector<std::uint32_t>{1, 2, 3});
  const auto offer =
      std::get<JobOffer>(*decode_control(encode_control(JobOffer{JobHash{9}, 10, "text"})));
  CHECK((offer.hash == JobHash{9} && offer.budget_samples == 10 && offer.document == "text"));
  const auto refuse = std::get<Refuse>(*decode_control(encode_control(Refuse{Error{"a", "b"}})));
  CHECK((refuse.reason.code == "a" && refuse.reason.text == "b"));
  CHECK(std::get<Bye>(*decode_control(encode_control(Bye{"left"}))).why == "left");
  CHECK(std::get<Ping>(*decode_control(encode_control(Ping{77}))).nonce == 77);
  CHECK(std::get<Ping>(*decode_control(encode_control(Ping{77, 4}))).links == 4);
  CHECK(std::holds_alternative<Spare>(*decode_control(encode_control(Spare{}))));
  const auto with_links = [](std::optional<std::uint32_t> links) {
    return std::get<Hello>(
        *decode_control(encode_control(Hello{.protocol = 1, .id = NodeId{3}, .links = links})));
  };
  CHECK_FALSE(with_links(std::nullopt).links);
  CHECK(with_links(0u).links == 0);
  CHECK(with_links(4'000'000'000u).links == members_max);
  const auto pong = std::get<Pong>(*decode_control(encode_control(Pong{78, 1'800'000'000'000})));
  CHECK(pong.nonce == 78);
  CHECK(pong.clock_ms == 1'800'000'000'000);
  // A node that does not know its clock sends what it always has.
  CHECK(encode_control(Pong{78}).size() == encode_control(Ping{78}).size());
  const FileRequest request{{1, 2, 3}, 4};
  CHECK(std::get<FileRequest>(*decode_control(encode_control(request))).file == request.file);
  CHECK(std::get<FileRequest>(*decode_control(encode_control(request))).offset == 4);
  CHECK(std::get<FileAbsent>(*decode_control(encode_control(FileAbsent{{1, 2, 3}}))).file ==
        request.file);
  CHECK(std::holds_alternative<JobRequest>(*decode_control(encode_control(JobRequest{}))));
}

TEST_CASE("a marked hello and a notice of two processes come out as they went in") {
  Hello marked{.protocol = 1, .id = NodeId{3}};
  marked.instance = 7;
  marked.founds = marked.rotates = true;
  const auto marked_back = std::get<Hello>(*decode_control(encode_control(marked)));
  CHECK((marked_back.instance == 7 && marked_back.founds && marked_back.rotates));
  const Cloned cloned{NodeId{1}, 5, 9, Endpoint{"a", 1}, Endpoint{"b", 2}};
  const auto cloned_back = std::get<Cloned>(*decode_control(encode_control(cloned)));
  CHECK((cloned_back.id == NodeId{1} && cloned_back.keeps == 5 && cloned_back.gives_up == 9));
  CHECK((cloned_back.keeper == Endpoint{"a", 1} && cloned_back.other == Endpoint{"b", 2}));
  CHECK_FALSE(decode_control(encode_control(Cloned{NodeId{1}, 9, 9, {"a", 1}, {"b", 2}})));
  CHECK_FALSE(decode_control(encode_control(Cloned{NodeId{0}, 5, 9, {"a", 1}, {"b", 2}})));
}

TEST_CASE("a message kind or a key of a later version is skipped, not refused") {
  const auto cbor = [](const nlohmann::json& map) {
    const auto bytes = nlohmann::json::to_cbor(map);
    Bytes out(bytes.size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  };
  const auto unknown = decode_control(cbor({{"kind", "from-the-future"}, {"x", 1}}));
  REQUIRE(unknown);
  CHECK(std::get<UnknownControl>(*unknown).kind == "from-the-future");
  const auto ping = decode_control(cbor({{"kind", "ping"}, {"nonce", 5u}, {"colour", "green"}}));
  REQUIRE(ping);
  CHECK(std::get<Ping>(*ping).nonce == 5);
}

TEST_CASE(
    "a hello names the oldest and the newest version its sender speaks; one of a release that "
    "names one speaks no other") {
  Hello hello{.protocol = 2, .id = NodeId{3}, .newest = 5};
  const auto both = decode_control(encode_control(hello));
  REQUIRE(both);
  CHECK((std::get<Hello>(*both).protocol == 2 && std::get<Hello>(*both).newest == 5));
  hello.newest = 0;
  const auto one = decode_control(encode_control(hello));
  REQUIRE(one);
  CHECK(std::get<Hello>(*one).newest == 2);
  CHECK(common_protocol({2, 3}, {2, 5}) == 3);
  CHECK(common_protocol({2, 3}, {3, 5}) == 3);
  CHECK(common_protocol({2, 3}, {2, 2}) == 2);
  CHECK_FALSE(common_protocol({2, 3}, {4, 5}));
  CHECK_FALSE(common_protocol({2, 3}, {1, 1}));
}

TEST_CASE("nonsense as a control message is an error and nothing else") {
  CHECK_FALSE(decode_control({}));
  CHECK_FALSE(decode_control(Bytes(control_bytes_max + 1)));
  CHECK_FALSE(decode_control(Bytes(60000, std::byte{0x81})));  // arrays within arrays within arrays
  CHECK_FALSE(decode_control(Bytes(60000, std::byte{0xa1})));
  const Bytes good = encode_control(
      Hello{1, ClusterId{2}, NodeId{3}, 4, "name", Endpoint{"host", 5}, JobHash{6}, false});
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK_FALSE(decode_control(std::span(good).first(cut)));
  CHECK_FALSE(decode_control(encode_control(Hello{})));  // no node id
  Random random(1);
  std::size_t errors = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes noise(random.below(200));
    for (std::byte& b : noise) b = static_cast<std::byte>(random.next());
    errors += decode_control(noise) ? 0 : 1;
  }
  CHECK(errors > 19000);
}

TEST_CASE("a turn comes out as it went in, and local segments have no block") {
  const Schema schema = two_blocks();
  REQUIRE(schema.blocks().size() == 2);
  CHECK(schema.blocks()[1].offset == 302);
  TurnHeader header;
  header.last = true;
  header.turn = 41;
  header.gain_speaker = 0.125f;
  header.gain_listener = 0.25f;
  header.weight = 0.5f;
  header.in_flight = 3;
  header.step = 1u << 30;
  header.step_seconds = 0.01f;
  header.snapshot_age_seconds = 0.5f;
  header.loss = 2.25f;
  const Bytes message = turn_with({{0, Codec{CodecId::top_k, 32}},
                                   {1, Codec{CodecId::mirror, 0}},
                                   {1, Codec{CodecId::bf16, 0}}},
                                  schema, header);
  TurnHeader back;
  std::vector<TurnRecord> records;
  REQUIRE_FALSE(decode_turn(message, schema, back, records));
  CHECK((back.last && back.turn == 41 && back.gain_speaker == 0.125f &&
         back.gain_listener == 0.25f && back.weight == 0.5f && back.in_flight == 3));
  CHECK((back.step == 1u << 30 && back.step_seconds == 0.01f && back.snapshot_age_seconds == 0.5f &&
         back.loss == 2.25f));
  REQUIRE(records.size() == 3);
  CHECK(records[0].codec == Codec{CodecId::top_k, 32});
  CHECK(records[0].version == 7);
  CHECK(records[1].payload.empty());
  CHECK(records[2].payload.size() == 40);
}

TEST_CASE("a block that goes whole may carry a hash, a delta may not") {
  const Schema schema = two_blocks();
  const Bytes message = turn_with({{0, Codec{CodecId::int8, 0}},
                                   {1, Codec{CodecId::keyframe, 0}},
                                   {1, Codec{CodecId::mirror, 0}}},
                                  schema, {}, 0x123456789abcdef0);
  TurnHeader header;
  std::vector<TurnRecord> records;
  REQUIRE_FALSE(decode_turn(message, schema, header, records));
  REQUIRE(records.size() == 3);
  CHECK_FALSE(records[0].hash);
  CHECK((records[1].hash == 0x123456789abcdef0 && records[1].payload.size() == 80));
  CHECK((records[2].hash == 0x123456789abcdef0 && records[2].payload.empty()));
  for (std::size_t cut = 0; cut < message.size(); ++cut)
    CHECK(decode_turn(std::span(message).first(cut), schema, header, records) == Reject::malformed);
  Bytes spoiled = message;
  spoiled[turn_header_bytes + 9] = std::byte{2};
  CHECK(decode_turn(spoiled, schema, header, records) == Reject::malformed);
  spoiled[turn_header_bytes + 9] = std::byte{4};
  CHECK(decode_turn(spoiled, schema, header, records) == Reject::malformed);
}

TEST_CASE("a turn that is cut, padded, or names what does not exist is refused whole") {
  const Schema schema = two_blocks();
  const Bytes good =
      turn_with({{0, Codec{CodecId::int8, 0}}, {1, Codec{CodecId::keyframe, 0}}}, schema);
  TurnHeader header;
  std::vector<TurnRecord> records;
  REQUIRE_FALSE(decode_turn(good, schema, header, records));
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK(decode_turn(std::span(good).first(cut), schema, header, records) == Reject::malformed);
  const auto spoiled = [&](std::size_t at, auto value) {
    Bytes message = good;
    std::memcpy(message.data() + at, &value, sizeof value);
    return decode_turn(message, schema, header, records);
  };
  Bytes padded = good;
  padded.push_back(std::byte{0});
  CHECK(decode_turn(padded, schema, header, records) == Reject::malformed);
  CHECK(spoiled(0, std::uint8_t{9}) == Reject::malformed);
  CHECK(spoiled(1, std::uint8_t{2}) == Reject::malformed);
  CHECK(spoiled(2, std::uint16_t{65535}) == Reject::malformed);
  CHECK(spoiled(8, std::numeric_limits<float>::infinity()) == Reject::bad_gain);
  CHECK(spoiled(8, -0.1f) == Reject::bad_gain);
  CHECK(spoiled(12, 1.5f) == Reject::bad_gain);
  CHECK(spoiled(40, -1.0f) == Reject::malformed);
  CHECK(spoiled(40, std::numeric_limits<float>::quiet_NaN()) == Reject::malformed);
  CHECK(spoiled(turn_header_bytes, std::uint32_t{2}) == Reject::unknown_block);
  CHECK(spoiled(turn_header_bytes + 8, std::uint8_t{200}) == Reject::malformed);
  CHECK(spoiled(turn_header_bytes + 9, std::uint8_t{2}) == Reject::malformed);
  REQUIRE_FALSE(spoiled(turn_header_bytes + 9, std::uint8_t{1}));  // int8 may be fresh …
  CHECK((records[0].fresh && !records[1].fresh));
  const std::size_t second = turn_header_bytes + turn_record_bytes +
                             encoded_size(Codec{CodecId::int8, 0}, schema.blocks()[0].size);
  CHECK(spoiled(second + 9, std::uint8_t{1}) == Reject::malformed);  // … a keyframe is so already
  CHECK(decode_turn(Bytes(bulk_message_bytes_max + 1), schema, header, records) ==
        Reject::too_large);
}

TEST_CASE("a replica state of another schema is refused") {
  const Schema schema = two_blocks();
  ReplicaState state;
  state.blocks = {{3, 77}, {0, 0}};
  ReplicaState back;
  REQUIRE_FALSE(decode_replica_state(encode_replica_state(state), schema, back));
  CHECK((back.blocks[0].version == 3 && back.blocks[0].hash == 77 && back.blocks[1].version == 0));
  state.blocks.push_back({1, 1});
  CHECK(decode_replica_state(encode_replica_state(state), schema, back) == Reject::foreign_schema);
}

TEST_CASE("endpoints are read in every form people write them in") {
  Endpoint endpoint;
  CHECK((parse_endpoint("box1", 7610, endpoint) && endpoint == Endpoint{"box1", 7610}));
  CHECK((parse_endpoint("10.0.0.1:99", 7610, endpoint) && endpoint == Endpoint{"10.0.0.1", 99}));
  CHECK((parse_endpoint("[::1]", 7610, endpoint) && endpoint == Endpoint{"::1", 7610}));
  CHECK((parse_endpoint("[::1]:99", 7610, endpoint) && endpoint == Endpoint{"::1", 99}));
  for (const char* bad : {"", "a:1:2]", "[a[b]:1", ":5", "box:", "box:70000", "[::1", "[::1]x",
                          "[::1]:", "a b", "box:1x", "::1", "foo:bar:3", "7610", "99999:1"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(parse_endpoint(bad, 7610, endpoint));
  }
  CHECK(to_string(Endpoint{"::1", 5}) == "[::1]:5");
}

TEST_CASE("what newer releases say of a member comes out as it went in, and is unknown of older") {
  MemberRecord record = full_record();
  record.version = "0.2.0";
  record.device = "cuda:0";
  record.reachability = Reachability::address_silent;
  record.accuracy = 0.75;
  const Bytes sent = encode_control(Members{{record}, {stats_of(record)}});
  const auto said = std::get<Members>(*decode_control(sent));
  CHECK(said.records[0].version == "0.2.0");
  CHECK(said.records[0].device == "cuda:0");
  CHECK(said.records[0].reachability == Reachability::address_silent);
  CHECK(said.records[0].accuracy == 0.75);
  CHECK(said.stats[0].accuracy == 0.75);

  auto json =
      nlohmann::json::from_cbor(reinterpret_cast<const std::uint8_t*>(sent.data()),
                                reinterpret_cast<const std::uint8_t*>(sent.data()) + sent.size());
  const auto shorten = [](nlohmann::json& list, std::size_t items) {
    while (list.size() > items) list.erase(list.size() - 1);
  };
  shorten(json["records"][0], 17);
  shorten(json["figures"][0], 10);
  const std::vector<std::uint8_t> old = nlohmann::json::to_cbor(json);
  const auto older = decode_control(std::as_bytes(std::span(old)));
  REQUIRE(older);
  const auto& members = std::get<Members>(*older);
  REQUIRE((members.records.size() == 1 && members.stats.size() == 1));
  CHECK(members.records[0].news == record.news);
  CHECK(members.records[0].version.empty());
  CHECK(members.records[0].reachability == Reachability::unknown);
  CHECK(members.records[0].accuracy == -1);
  CHECK(members.stats[0].accuracy == -1);
}

TEST_CASE("what was found at an address comes out as it went in, the reason in bounds") {
  const Reached found{Endpoint{"10.0.0.2", 7610}, false, std::string(5000, 'x')};
  const auto back = std::get<Reached>(*decode_control(encode_control(found)));
  CHECK(back.address == found.address);
  CHECK(!back.answers);
  CHECK(back.reason.size() == reached_reason_bytes_max);
}

TEST_CASE(
    "a next job comes out as it went in, and one without number, cluster or text not at all") {
  const Succession told{ClusterId{0xc1}, 2, JobHash{7}, "name = \"b\"\n"};
  const auto back = std::get<Succession>(*decode_control(encode_control(told)));
  CHECK(back.founded == told.founded);
  CHECK(back.generation == told.generation);
  CHECK(back.hash == told.hash);
  CHECK(back.document == told.document);
  for (const Succession& bad :
       {Succession{ClusterId{}, 2, JobHash{7}, "x"}, Succession{ClusterId{1}, 1, JobHash{7}, "x"},
        Succession{ClusterId{1}, 2, JobHash{7}, ""}})
    CHECK_FALSE(decode_control(encode_control(bad)));
}

TEST_CASE(
    "a hello of the founding job says no number, and one of a later job names both clusters") {
  Hello hello;
  hello.protocol = protocol_oldest;
  hello.id = NodeId{1};
  hello.cluster = hello.founded = ClusterId{0xc1};
  auto back = std::get<Hello>(*decode_control(encode_control(hello)));
  CHECK(back.generation == 1);
  CHECK(back.founded == ClusterId{0xc1});
  hello.cluster = ClusterId{0xc2};
  hello.generation = 5;
  back = std::get<Hello>(*decode_control(encode_control(hello)));
  CHECK(back.generation == 5);
  CHECK(back.cluster == ClusterId{0xc2});
  CHECK(back.founded == ClusterId{0xc1});
}
