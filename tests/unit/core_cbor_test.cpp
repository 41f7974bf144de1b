// What is refused of a control message before a parser sees it.
#include <doctest/doctest.h>

#include "core/wire/cbor_bounds.h"
#include "core/wire/control.h"

using namespace gossipd;

namespace {

constexpr CborBounds small{.depth_max = 2, .items_max = 8, .text_bytes_max = 4};

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

}  // namespace

TEST_CASE(
    "a control message of 65,536 bytes of which each opens a string of unknown length is refused") {
  for (const int first : {0x7f, 0x5f, 0x9f, 0xbf, 0x81, 0xa1, 0xc0, 0xd8, 0xff, 0xfb, 0x1b, 0x00})
    CHECK_FALSE(decode_control(Bytes(control_bytes_max, static_cast<std::byte>(first))));
  const auto refused = decode_control(Bytes(control_bytes_max, std::byte{0x7f}));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text == "a control message with an item of unknown length");
}

TEST_CASE(
    "a string of unknown length is refused wherever it hides in a message that is well formed "
    "otherwise") {
  const auto with = [](std::initializer_list<int> value) {
    Bytes message = bytes_of({0xa2, 0x64, 'k', 'i', 'n', 'd', 0x64, 'p', 'i', 'n', 'g', 0x61, 'x'});
    const Bytes tail = bytes_of(value);
    message.insert(message.end(), tail.begin(), tail.end());
    return message;
  };
  CHECK(decode_control(with({0x00})));
  CHECK(decode_control(with({0x82, 0x01, 0x02})));
  CHECK_FALSE(decode_control(with({0x7f, 0x61, 'a', 0xff})));        // text
  CHECK_FALSE(decode_control(with({0x5f, 0x41, 'a', 0xff})));        // bytes
  CHECK_FALSE(decode_control(with({0x9f, 0x00, 0xff})));             // an array
  CHECK_FALSE(decode_control(with({0xbf, 0x61, 'a', 0x00, 0xff})));  // a map
  CHECK_FALSE(decode_control(with({0x82, 0x00, 0x7f, 0xff})));       // in an array
  CHECK_FALSE(decode_control(with({0xc0, 0x61, 'a'})));              // a tag
  CHECK_FALSE(decode_control(with({0xd8, 0x18, 0x41, 'a'})));        // a longer tag
  // bytes of known length
  CHECK_FALSE(decode_control(with({0x41, 'a'})));
  CHECK_FALSE(decode_control(with({0xf7})));  // undefined
}

TEST_CASE("the walk before parsing bounds depth, items, text and length") {
  CHECK_FALSE(beyond(small, bytes_of({0x82, 0x81, 0x01, 0x02})));
  CHECK(beyond(small, bytes_of({0x81, 0x81, 0x81, 0x01})) == "more than 2 levels");
  CHECK(beyond(small, bytes_of({0x88, 1, 2, 3, 4, 5, 6, 7, 8})) == "more than 8 items");
  CHECK_FALSE(beyond(small, bytes_of({0x87, 1, 2, 3, 4, 5, 6, 7})));
  CHECK(beyond(small, bytes_of({0x65, 'a', 'b', 'c', 'd', 'e'})) == "a text of more than 4 bytes");
  CHECK(beyond(small, bytes_of({0x64, 'a', 'b', 'c'})) == "no end");
  CHECK(beyond(small, bytes_of({0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})) ==
        "no end");
  CHECK(beyond(small, bytes_of({0xbb, 0x80, 0, 0, 0, 0, 0, 0, 0, 1})) == "no end");
  CHECK(beyond(small, bytes_of({0x01, 0x01})) == "bytes behind its end");
  CHECK(beyond(small, bytes_of({0xa1, 0x01, 0x01})) == "a key that is no text");
  CHECK_FALSE(beyond(small, bytes_of({0xa1, 0x61, 'k', 0xa1, 0x61, 'l', 0xf6})));
  CHECK(beyond(small, {}) == "no end");
}
