// The packets between a trainer and its daemon, byte by byte, and the list of segments.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <limits>

#include "models/external/packet_socket.h"
#include "models/external/packets.h"
#include "models/external/segment_list.h"
#include "models_attach_words.h"

using namespace gossipd;
using attach::FromDaemon;
using attach::FromTrainer;
using attach::Go;
using test::attach_words;
using test::floats;
using test::schema;
using test::segments;

namespace {

std::string hex(const Bytes& bytes) {
  std::string text;
  for (const std::byte byte : bytes)
    text += to_hex(std::to_integer<std::uint64_t>(byte)).substr(14);
  return text;
}

}  // namespace

// ---- the packets ----

TEST_CASE("packets are what ATTACH.md says, byte by byte") {
  CHECK(
      hex(attach::encode(FromTrainer(attach::Attach{.run = {0xaa, 0xbb},
                                                    .floats = 9,
                                                    .segments = 3,
                                                    .step_samples = 64,
                                                    .counters = {.steps = 5, .samples = 320}}))) ==
      "4750415401000100"
      "0000000000000000"
      "aabb0000000000000000000000000000"
      "0900000000000000"
      "03000000"
      "40000000"
      "0500000000000000"
      "4001000000000000"
      "0000000000000000");
  CHECK(hex(attach::encode(FromTrainer(attach::Segments{.first = 0, .segments = segments()}))) ==
        "4750415402000100"
        "0000000000000000"
        "03000000"
        "00000000"
        "0002"
        "0100"
        "0200000000000000"
        "0300000000000000"
        "77"
        "0101"
        "0400"
        "0200000000000000"
        "6d65616e"
        "0200"
        "0500"
        "7374657073");
  CHECK(hex(attach::encode(FromTrainer(attach::StepDone{.sequence = 2,
                                                        .counters = {.steps = 6, .samples = 384},
                                                        .loss = 0.5,
                                                        .learning_rate = 0.25,
                                                        .seconds = 2}))) ==
        "4750415403000100"
        "0200000000000000"
        "0600000000000000"
        "8001000000000000"
        "000000000000e03f"
        "000000000000d03f"
        "0000000000000040"
        "01000000"
        "00000000");
}

TEST_CASE("packets of a trainer are what ATTACH.md says, byte by byte, the later ones too") {
  CHECK(hex(attach::encode(
            FromTrainer(attach::Done{.sequence = 3, .counters = {.steps = 6, .samples = 384}}))) ==
        "4750415404000100"
        "0300000000000000"
        "0600000000000000"
        "8001000000000000");
  CHECK(hex(attach::encode(FromTrainer(attach::Report{
            .accuracy = 0.5, .loss = 0.25, .samples = 7, .step = 6, .seconds = 2}))) ==
        "4750415405000100"
        "0000000000000000"
        "000000000000e03f"
        "000000000000d03f"
        "0700000000000000"
        "0600000000000000"
        "0000000000000040");
  CHECK(hex(attach::encode(FromTrainer(attach::Detach{}))) ==
        "4750415406000100"
        "0000000000000000");
}

TEST_CASE("the daemon's packets are what ATTACH.md says, byte by byte") {
  CHECK(hex(attach::encode(FromDaemon(attach::Attached{.memory_bytes = 16384,
                                                       .schema = SchemaHash{1},
                                                       .node_samples = 2,
                                                       .budget = 3,
                                                       .node = NodeId{4},
                                                       .known_run = true}))) ==
        "4750415441000100"
        "0000000000000000"
        "0040000000000000"
        "0100000000000000"
        "0200000000000000"
        "0300000000000000"
        "0400000000000000"
        "01000000"
        "00000000");
  CHECK(hex(attach::encode(
            FromDaemon(attach::Notice{.refused = true, .code = "occupied", .text = "no"}))) ==
        "4750415442000100"
        "0000000000000000"
        "6f63637570696564000000000000000000000000000000000000000000000000"
        "02000000"
        "6e6f");
  CHECK(hex(attach::encode(FromDaemon(Go{.sequence = 1,
                                         .answers = 2,
                                         .flags = Go::add | Go::copy,
                                         .progress = 0.5,
                                         .cluster_samples = 3,
                                         .budget = 6,
                                         .rate_factor = 0.25,
                                         .place = 1,
                                         .trainers = 2,
                                         .snapshot = 1,
                                         .members = 3,
                                         .node_samples = 4,
                                         .ranges = {{.first = 5, .floats = 6}}}))) ==
        "4750415444000100"
        "0100000000000000"
        "0200000000000000"
        "05000000"
        "01000000"
        "000000000000e03f"
        "0300000000000000"
        "0600000000000000"
        "000000000000d03f"
        "01000000"
        "02000000"
        "01000000"
        "03000000"
        "0400000000000000"
        "0000000000000000"
        "0500000000000000"
        "0600000000000000");
}

TEST_CASE("no packet that is cut short, too long or of another version is read") {
  const FromTrainer all[] = {attach_words(),
                             attach::Segments{.first = 0, .segments = segments()},
                             attach::StepDone{.sequence = 1},
                             attach::Done{.sequence = 1},
                             attach::Report{.loss = 1},
                             attach::Detach{}};
  for (const FromTrainer& fields : all) {
    Bytes packet = attach::encode(fields);
    REQUIRE(attach::decode_from_trainer(packet));
    for (std::size_t size = 0; size < packet.size(); ++size)
      CHECK_FALSE(attach::decode_from_trainer(std::span(packet).first(size)));
    packet.push_back(std::byte{0});
    CHECK(attach::decode_from_trainer(packet).error().code == "bad-packet");
    packet.pop_back();
    packet[6] = std::byte{2};
    CHECK(attach::decode_from_trainer(packet).error().code == "version");
    packet[0] = std::byte{0};
    CHECK(attach::decode_from_trainer(packet).error().code == "bad-packet");
  }
}

TEST_CASE("what no trainer can mean is refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  attach::Attach none = attach_words(), many = attach_words(), zero_samples = attach_words();
  none.floats = 0;
  many.segments = 65537;
  zero_samples.step_samples = 0;
  const FromTrainer wrong[] = {
      none,
      many,
      zero_samples,
      attach::Segments{.first = 0, .segments = {{.name = "", .shape = {2}}}},
      attach::Segments{.first = 0, .segments = {{.name = "a\nb", .shape = {2}}}},
      attach::Segments{.first = 0, .segments = {{.name = "a", .shape = {0}}}},
      attach::Segments{.first = 0, .segments = {{.name = "a", .shape = {1 << 20, 1 << 20}}}},
      attach::Segments{.first = 65536, .segments = {{.name = "a", .shape = {1}}}},
      attach::StepDone{.sequence = 0},
      attach::StepDone{.sequence = 1, .counters = {.steps = 1ull << 61}},
      attach::StepDone{.sequence = 1, .learning_rate = nan},
      attach::StepDone{.sequence = 1, .seconds = -1},
      attach::Report{.accuracy = 1.5, .loss = 1},
      attach::Report{.loss = nan}};
  for (const FromTrainer& fields : wrong)
    CHECK_FALSE(attach::decode_from_trainer(attach::encode(fields)));
  CHECK_FALSE(attach::decode_from_trainer(attach::encode(FromDaemon(Go{}))));
}

// ---- the list of segments ----

TEST_CASE("a list of segments is read back as the same schema") {
  const std::string text = format_segment_list(segments());
  CHECK(text == "parameter 2,3 w\nstatistic 2 mean\nlocal - steps\n");
  const auto again = parse_segment_list(text);
  REQUIRE(again);
  CHECK(again->hash() == schema().hash());
  CHECK(again->floats() == floats);
  for (const char* wrong :
       {"", "parameter 2,3\n", "weight 2 w\n", "parameter 2, w\n", "parameter 0 w\n",
        "parameter 2 w\nparameter 3 w\n", "local 2 w\n", "parameter 4294967296,2 w\n"})
    CHECK_MESSAGE(!parse_segment_list(wrong), wrong);
}

TEST_CASE("the first tensor that differs is named") {
  const auto difference = [](std::vector<Segment> here) {
    return first_difference(*schema_of(std::move(here)), schema()).value_or("none");
  };
  CHECK(difference(segments()) == "none");
  std::vector<Segment> other = segments();
  other[0].shape = {2, 4};
  CHECK(difference(other) == "'w' is 2 x 4 here and 2 x 3 in the job");
  other = segments();
  other[1].kind = SegmentKind::parameter;
  CHECK(difference(other) == "'mean' is 2 here and 2 (statistic) in the job");
  other = segments();
  other[1].name = "average";
  CHECK(difference(other) == "tensor 2 is 'average' here and 'mean' in the job");
  other = segments();
  other.pop_back();
  CHECK(difference(other) == "'steps' of the job is missing here");
  other = segments();
  other.push_back({.name = "more", .shape = {1}});
  CHECK(difference(other) == "'more' is not in the job, which has 3 tensors");
}

TEST_CASE("the last words reach the other end though nobody has read its own") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const Descriptor other(ends[0]);
  const Bytes unread(100, std::byte{7}), refusal(3, std::byte{66});
  {
    const PacketSocket socket{Descriptor(ends[1])};
    for (int i = 0; i < 3; ++i)
      REQUIRE(::send(other.number(), unread.data(), unread.size(), MSG_NOSIGNAL) == 100);
    REQUIRE(socket.send(refusal) == PacketSocket::Sent::yes);
  }
  Bytes heard(200);
  CHECK(::recv(other.number(), heard.data(), heard.size(), 0) == 3);
  CHECK(heard[0] == refusal[0]);
  CHECK(::recv(other.number(), heard.data(), heard.size(), 0) == 0);
}
