#include "core/codec/sparse_sum.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/base/random.h"

using namespace gossipd;

namespace {

constexpr std::size_t sizes[] = {1, 7, 255, 1023, 1024, 1025, 65536};

std::vector<float> values(Random& random, std::size_t size) {
  std::vector<float> all(size);
  for (float& x : all) x = random.below(4) == 0 ? 0.0f : static_cast<float>(random.uniform() - 0.5);
  return all;
}

}  // namespace

TEST_CASE("the sum of sparse deltas is what they add to zeros") {
  for (const std::size_t size : sizes) {
    for (const std::uint16_t keep : {1, 31, 64, 512}) {
      CAPTURE(size);
      CAPTURE(keep);
      Random random(size + keep);
      const std::vector<float> start = values(random, size);
      std::vector<float> expected(size), y = start;
      SparseSum sum(size);
      for (const Codec codec : {Codec{CodecId::top_k, keep}, Codec{CodecId::top_k, 64}}) {
        std::vector<float> published = start;
        Bytes payload(encoded_size(codec, size));
        REQUIRE(encode(codec, values(random, size), published, payload));
        REQUIRE(apply(codec, payload, expected, 1e6f) == ApplyError::none);
        sum.add(codec.keep, payload);
      }
      sum.finish();
      std::size_t places = 0;
      double squares = 0;
      for (const float x : expected) {
        places += x != 0 ? 1 : 0;
        squares += double(x) * double(x);
      }
      CHECK(sum.count() == places);
      CHECK(sum.squares() == squares);
      sum.add_to(y, 0.25f);
      std::vector<float> all = start;
      for (std::size_t i = 0; i < size; ++i) all[i] += 0.25f * expected[i];
      CHECK(std::memcmp(y.data(), all.data(), 4 * size) == 0);
    }
  }
}
