// Codecs by name, and the choice of a finer one.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/codec/codec.h"

using namespace gossipd;

TEST_CASE("codecs are named and parsed") {
  CHECK(parse_codec("fp32") == Codec{CodecId::fp32});
  CHECK(parse_codec("bf16") == Codec{CodecId::bf16});
  CHECK(parse_codec("int8") == Codec{CodecId::int8});
  CHECK(parse_codec("int4") == Codec{CodecId::int4});
  CHECK(parse_codec("ternary") == Codec{CodecId::ternary});
  CHECK(parse_codec("top_k") == Codec{CodecId::top_k, 32});
  CHECK(parse_codec("top_k:31") == Codec{CodecId::top_k, 31});
  CHECK(parse_codec("top_k:512") == Codec{CodecId::top_k, 512});
  for (const char* wrong : {"", "int9", "INT8", "top_k:", "top_k:0", "top_k:513", "top_k:99999",
                            "top_k:3x", "top_k: 3", "top_k:-1", "mirror", "keyframe"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_codec(wrong).has_value());
  }
}

TEST_CASE("a finer codec takes about so many times the bits, and never fewer") {
  CHECK(to_text(finer({CodecId::top_k, 64}, 1)) == "top_k:64");
  CHECK(to_text(finer({CodecId::top_k, 64}, 0.1)) == "top_k:64");
  CHECK(to_text(finer({CodecId::top_k, 64}, 2.5)) == "top_k:160");
  CHECK(to_text(finer({CodecId::top_k, 64}, 4)) == "top_k:256");
  CHECK(to_text(finer({CodecId::top_k, 64}, 4.1)) == "ternary");
  CHECK(to_text(finer({CodecId::top_k, 64}, 7)) == "int4");
  CHECK(to_text(finer({CodecId::top_k, 64}, 1000)) == "int8");
  CHECK(to_text(finer({CodecId::top_k, 512}, 1.1)) == "top_k:512");
  CHECK(to_text(finer({CodecId::ternary}, 2)) == "int4");
  CHECK(to_text(finer({CodecId::fp32}, 5)) == "fp32");
  CHECK(bits_per_float({CodecId::ternary}) == doctest::Approx(8.0 * 54 / 256));
  for (const char* name : {"fp32", "bf16", "int8", "int4", "ternary", "top_k:1", "top_k:31",
                           "top_k:32", "top_k:512"}) {
    const Codec codec = parse_codec(name).value();
    double before = bits_per_float(codec);
    for (double factor = 1; factor < 40; factor *= 1.1) {
      const double bits = bits_per_float(finer(codec, factor));
      REQUIRE(bits >= before);
      REQUIRE(bits <= std::max(before, 1.25 * factor * bits_per_float(codec)));
      before = bits;
    }
  }
}
