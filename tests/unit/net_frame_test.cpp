#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/base/random.h"
#include "net/peer/frame.h"

using namespace gossipd;

namespace {

Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}

Bytes single(FrameKind kind, const Bytes& payload) {
  Bytes out;
  const auto length = static_cast<std::uint32_t>(payload.size());
  append_frame({.kind = kind, .first = true, .length = length, .total = length}, payload, out);
  return out;
}

void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }

Bytes chunk(const Bytes& message, std::size_t begin, std::size_t length, bool first) {
  Bytes out;
  append_frame({.kind = FrameKind::bulk,
                .first = first,
                .length = static_cast<std::uint32_t>(length),
                .total = static_cast<std::uint32_t>(message.size())},
               std::span(message).subspan(begin, length), out);
  return out;
}

struct Decoded {
  std::vector<std::pair<FrameKind, Bytes>> messages;
  std::optional<FrameError> error;
  bool at_boundary = false;
};

// Feeds `stream` in pieces that end at the given places.
Decoded decode(const Bytes& stream, const std::vector<std::size_t>& cuts = {},
               const FrameLimits& limits = {}) {
  FrameDecoder decoder(limits);
  Decoded decoded;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const std::size_t end = i < cuts.size() ? cuts[i] : stream.size();
    const Bytes piece(stream.begin() + static_cast<std::ptrdiff_t>(begin),
                      stream.begin() + static_cast<std::ptrdiff_t>(end));
    decoder.feed(piece);
    while (const auto message = decoder.next()) {
      decoded.messages.emplace_back(message->kind,
                                    Bytes(message->payload.begin(), message->payload.end()));
    }
    begin = end;
  }
  decoded.error = decoder.error();
  decoded.at_boundary = decoder.at_boundary();
  return decoded;
}

// A bulk message in three chunks with control messages between, then a goodbye.
Bytes mixed_stream(std::vector<std::pair<FrameKind, Bytes>>& expected) {
  const Bytes bulk = bytes_of("the quick brown fox jumps over the lazy dog");
  Bytes stream = single(FrameKind::control, bytes_of("first"));
  append(stream, chunk(bulk, 0, 10, true));
  append(stream, single(FrameKind::control, bytes_of("a")));
  append(stream, single(FrameKind::control, bytes_of("bc")));
  append(stream, chunk(bulk, 10, 20, false));
  append(stream, single(FrameKind::control, bytes_of("overtakes")));
  append(stream, chunk(bulk, 30, bulk.size() - 30, false));
  append(stream, single(FrameKind::goodbye, bytes_of("done: really")));
  expected = {{FrameKind::control, bytes_of("first")},
              {FrameKind::control, bytes_of("a")},
              {FrameKind::control, bytes_of("bc")},
              {FrameKind::control, bytes_of("overtakes")},
              {FrameKind::bulk, bulk},
              {FrameKind::goodbye, bytes_of("done: really")}};
  return stream;
}

}  // namespace

TEST_CASE("the frame of 'ping' has exactly the bytes of FRAME.md") {
  const unsigned char golden[] = {0x67, 0x50, 0x00, 0x01, 4,    0,    0,   0,   4,   0,
                                  0,    0,    0x8c, 0xdc, 0x3a, 0x02, 'p', 'i', 'n', 'g'};
  const auto expected = std::as_bytes(std::span(golden));
  CHECK(single(FrameKind::control, bytes_of("ping")) == Bytes(expected.begin(), expected.end()));
}

TEST_CASE("a stream split at any one byte gives the same messages") {
  std::vector<std::pair<FrameKind, Bytes>> expected;
  const Bytes stream = mixed_stream(expected);
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    CAPTURE(cut);
    const Decoded decoded = decode(stream, {cut});
    REQUIRE(decoded.messages == expected);
    REQUIRE(decoded.at_boundary);
  }
}

TEST_CASE("a stream fed byte by byte gives the same messages") {
  std::vector<std::pair<FrameKind, Bytes>> expected;
  const Bytes stream = mixed_stream(expected);
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < stream.size(); ++i) cuts.push_back(i);
  CHECK(decode(stream, cuts).messages == expected);
}

TEST_CASE("a stream that ends anywhere inside a message hands out nothing of that message") {
  const Bytes bulk = bytes_of("0123456789");
  Bytes stream = chunk(bulk, 0, 4, true);
  append(stream, chunk(bulk, 4, 6, false));
  for (std::size_t end = 0; end < stream.size(); ++end) {
    CAPTURE(end);
    const Decoded decoded =
        decode(Bytes(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(end)));
    REQUIRE(decoded.messages.empty());
    REQUIRE(!decoded.error);
    REQUIRE(decoded.at_boundary == (end == 0));
  }
}

TEST_CASE("a flip of any one bit is noticed and no message of that frame comes out") {
  const Bytes frame = single(FrameKind::control, bytes_of("heartbeat"));
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    CAPTURE(bit);
    Bytes flipped = frame;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    append(flipped, Bytes(2 * frame.size()));  // so that a longer length finds bytes to swallow
    const Decoded decoded = decode(flipped);
    REQUIRE(decoded.messages.empty());
    REQUIRE((decoded.error || !decoded.at_boundary));
  }
}

TEST_CASE("each broken rule has its own error") {
  const Bytes message = bytes_of("0123456789");
  FrameLimits limits{.control_bytes_max = 8, .bulk_bytes_max = 16, .chunk_bytes_max = 8};

  Bytes wrong_magic = single(FrameKind::control, bytes_of("x"));
  wrong_magic[0] = std::byte{'G'};
  CHECK(decode(wrong_magic).error == FrameError::magic);

  Bytes wrong_kind = single(FrameKind::control, bytes_of("x"));
  wrong_kind[2] = std::byte{3};
  CHECK(decode(wrong_kind).error == FrameError::kind);

  Bytes wrong_flag = single(FrameKind::control, bytes_of("x"));
  wrong_flag[3] = std::byte{0x81};
  CHECK(decode(wrong_flag).error == FrameError::kind);

  CHECK(decode(single(FrameKind::control, {})).error == FrameError::empty);
  CHECK(decode(single(FrameKind::control, message), {}, limits).error == FrameError::too_long);
  CHECK(decode(single(FrameKind::goodbye, Bytes(goodbye_bytes_max + 1))).error ==
        FrameError::too_long);
  CHECK(decode(chunk(message, 0, 9, true), {}, limits).error == FrameError::too_long);
  CHECK(decode(chunk(Bytes(17), 0, 8, true), {}, limits).error == FrameError::too_long);

  Bytes corrupt = single(FrameKind::bulk, message);
  corrupt.back() ^= std::byte{1};
  CHECK(decode(corrupt).error == FrameError::checksum);
}

TEST_CASE("a chunk that does not continue the message under way is refused") {
  const Bytes message = bytes_of("0123456789");
  CHECK(decode(chunk(message, 4, 6, false)).error == FrameError::chunk_order);  // none under way

  Bytes twice = chunk(message, 0, 4, true);
  append(twice, chunk(message, 0, 4, true));
  CHECK(decode(twice).error == FrameError::chunk_order);

  Bytes other_total = chunk(message, 0, 4, true);
  append(other_total, chunk(bytes_of("0123456789abc"), 4, 6, false));
  CHECK(decode(other_total).error == FrameError::chunk_order);

  Bytes past_the_end = chunk(message, 0, 8, true);
  append(past_the_end, chunk(message, 0, 8, false));
  CHECK(decode(past_the_end).error == FrameError::chunk_order);

  Bytes after_the_end = single(FrameKind::bulk, message);
  append(after_the_end, chunk(message, 4, 6, false));
  CHECK(decode(after_the_end).error == FrameError::chunk_order);
}

TEST_CASE("after an error the decoder stays silent whatever follows") {
  FrameDecoder decoder(FrameLimits{});
  const Bytes garbage = bytes_of("GET / HTTP/1.1\r\n\r\n");
  const Bytes good = single(FrameKind::control, bytes_of("ping"));
  decoder.feed(garbage);
  CHECK(!decoder.next());
  decoder.feed(good);
  CHECK(!decoder.next());
  CHECK(decoder.error() == FrameError::magic);
}

TEST_CASE("random garbage and randomly damaged streams never yield a message that was not sent") {
  std::vector<std::pair<FrameKind, Bytes>> expected;
  const Bytes stream = mixed_stream(expected);
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Bytes damaged = stream;
    for (std::uint64_t i = 0, damages = 1 + random.below(4); i < damages; ++i) {
      damaged[random.below(damaged.size())] = static_cast<std::byte>(random.next());
    }
    if (seed % 3 == 0) {
      for (std::size_t i = 2; i < damaged.size(); ++i)
        damaged[i] = static_cast<std::byte>(random.next());
    }
    const Decoded decoded = decode(damaged, {random.below(damaged.size())});
    for (const auto& message : decoded.messages) {
      REQUIRE(std::find(expected.begin(), expected.end(), message) != expected.end());
    }
  }
}
