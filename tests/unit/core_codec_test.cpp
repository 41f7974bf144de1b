#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/random.h"
#include "core/codec/codec.h"
#include "core/codec/kernels.h"

using namespace gossipd;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t sizes[] = {1, 7, 255, 256, 257, 1023, 1024, 1025, 65536};
constexpr Codec delta_codecs[] = {
    {CodecId::fp32},      {CodecId::bf16},      {CodecId::int8},
    {CodecId::int4},      {CodecId::ternary},   {CodecId::top_k, 1},
    {CodecId::top_k, 31}, {CodecId::top_k, 32}, {CodecId::top_k, 512}};
constexpr Codec all_codecs[] = {{CodecId::keyframe},  {CodecId::fp32},      {CodecId::bf16},
                                {CodecId::int8},      {CodecId::int4},      {CodecId::ternary},
                                {CodecId::top_k, 1},  {CodecId::top_k, 31}, {CodecId::top_k, 32},
                                {CodecId::top_k, 512}};

float bell(Random& random) {
  return static_cast<float>(random.uniform() + random.uniform() + random.uniform() - 1.5);
}

std::vector<float> bells(Random& random, std::size_t size, float scale) {
  std::vector<float> values(size);
  for (float& x : values) x = scale * bell(random);
  return values;
}

// What training leaves between two deltas: mostly bells, some zeros, ties, tiny and large ones.
void wander(Random& random, std::vector<float>& model) {
  const float scale = std::ldexp(1.0f, -static_cast<int>(random.below(20)));
  for (float& x : model) {
    switch (random.below(8)) {
      case 0: break;
      case 1: x += 0.25f * scale; break;
      case 2: x += 1e-20f * bell(random); break;
      case 3: x += 8 * scale * bell(random); break;
      default: x += scale * bell(random);
    }
  }
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Bytes encoded(Codec codec, std::span<const float> target, std::vector<float> published) {
  Bytes payload(encoded_size(codec, target.size()));
  REQUIRE(encode(codec, target, published, payload));
  return payload;
}

double norm(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
  return std::sqrt(sum);
}

// Encodes bells of size 1 for the malformed-payload tests.
Bytes some_payload(Codec codec, std::size_t size) {
  Random random(3);
  return encoded(codec, bells(random, size, 1), std::vector<float>(size));
}

void put_bf16(Bytes& payload, std::size_t at, unsigned bits) {
  payload[at] = static_cast<std::byte>(bits & 0xff);
  payload[at + 1] = static_cast<std::byte>(bits >> 8);
}

void check_refused(Codec codec, const Bytes& payload, std::size_t size, ApplyError expected,
                   float magnitude_max = 1e6f) {
  Random random(4);
  const std::vector<float> before = bells(random, size, 1);
  for (const Kernels* version : kernel_versions()) {
    CAPTURE(version->name);
    std::vector<float> received = before;
    CHECK(version->apply(codec, payload, received, magnitude_max) == expected);
    CHECK(same_bits(received, before));
  }
}

}  // namespace

TEST_CASE("replicas at both ends are bit-identical after each of 50 random deltas") {
  for (const Codec codec : all_codecs) {
    for (const std::size_t size : sizes) {
      CAPTURE(std::string(to_string(codec.id)));
      CAPTURE(codec.keep);
      CAPTURE(size);
      Random random(size);
      std::vector<float> model = bells(random, size, 0.1f), published(size, -0.0f),
                         received = published;
      Bytes payload(encoded_size(codec, size));
      int differ = 0;
      for (int delta = 0; delta < 50; ++delta) {
        wander(random, model);
        REQUIRE(encode(codec, model, published, payload));
        REQUIRE(apply(codec, payload, received, 1e6f) == ApplyError::none);
        differ += same_bits(published, received) ? 0 : 1;
      }
      CHECK(differ == 0);
    }
  }
}

TEST_CASE("every instruction set encodes the same bytes and leaves the same replicas") {
  REQUIRE(kernel_versions().size() >= 1);
  const Kernels& reference = *kernel_versions().front();
  for (const Kernels* version : kernel_versions().subspan(1)) {
    for (const Codec codec : all_codecs) {
      for (const std::size_t size : sizes) {
        CAPTURE(version->name);
        CAPTURE(std::string(to_string(codec.id)));
        CAPTURE(codec.keep);
        CAPTURE(size);
        Random random(7 * size + 1);
        std::vector<float> model = bells(random, size, 0.1f), published[2] = {model, model},
                           received[2] = {model, model};
        Bytes payload[2] = {Bytes(encoded_size(codec, size)), Bytes(encoded_size(codec, size))};
        bool same = true;
        for (int delta = 0; delta < 10; ++delta) {
          wander(random, model);
          REQUIRE(reference.encode(codec, model, published[0], payload[0]));
          REQUIRE(version->encode(codec, model, published[1], payload[1]));
          // Crosswise: each end runs what the other end's CPU produced.
          REQUIRE(reference.apply(codec, payload[1], received[0], 1e6f) == ApplyError::none);
          REQUIRE(version->apply(codec, payload[0], received[1], 1e6f) == ApplyError::none);
          same = same && payload[0] == payload[1] && same_bits(published[0], published[1]) &&
                 same_bits(received[0], received[1]) && same_bits(published[0], received[1]);
        }
        CHECK(same);
      }
    }
  }
}

TEST_CASE("deltas towards a fixed target converge: what one delta loses the next ones carry") {
  struct Expected {
    Codec codec;
    int deltas;
    double residual;  // relative to the distance at the start
  };
  const Expected table[] = {{{CodecId::fp32}, 2, 1e-7},       {{CodecId::bf16}, 4, 1e-7},
                            {{CodecId::int8}, 6, 1e-7},       {{CodecId::int4}, 12, 1e-6},
                            {{CodecId::ternary}, 60, 3e-3},   {{CodecId::top_k, 32}, 100, 0.03},
                            {{CodecId::top_k, 512}, 20, 1e-3}};
  for (const Expected& row : table) {
    CAPTURE(std::string(to_string(row.codec.id)));
    Random random(5);
    const std::vector<float> target = bells(random, 4096 + 300, 1);
    std::vector<float> published(target.size());
    const double start = norm(target, published);
    Bytes payload(encoded_size(row.codec, target.size()));
    for (int delta = 0; delta < row.deltas; ++delta)
      REQUIRE(encode(row.codec, target, published, payload));
    CHECK(norm(target, published) / start < row.residual);
  }
}

TEST_CASE("one delta removes the share of the distance that its codec is made for") {
  struct Expected {
    Codec codec;
    double residual_max;
  };
  const Expected table[] = {{{CodecId::bf16}, 0.004},
                            {{CodecId::int8}, 0.01},
                            {{CodecId::int4}, 0.13},
                            {{CodecId::ternary}, 0.45},
                            {{CodecId::top_k, 512}, 0.45}};
  for (const Expected& row : table) {
    CAPTURE(std::string(to_string(row.codec.id)));
    Random random(6);
    const std::vector<float> target = bells(random, 65536, 1);
    std::vector<float> published(target.size());
    Bytes payload(encoded_size(row.codec, target.size()));
    const double start = norm(target, published);
    REQUIRE(encode(row.codec, target, published, payload));
    CHECK(norm(target, published) / start < row.residual_max);
  }
}

TEST_CASE("nothing is invented or lost: the deltas sent plus the residual are the target") {
  for (const Codec codec : delta_codecs) {
    CAPTURE(std::string(to_string(codec.id)));
    Random random(8);
    const std::size_t size = 1500;
    const std::vector<float> target = bells(random, size, 1);
    std::vector<float> published(size), decoded(size);
    std::vector<double> sent(size);
    Bytes payload(encoded_size(codec, size));
    for (int delta = 0; delta < 20; ++delta) {
      REQUIRE(encode(codec, target, published, payload));
      std::fill(decoded.begin(), decoded.end(), 0.0f);
      REQUIRE(apply(codec, payload, decoded, 1e6f) == ApplyError::none);
      for (std::size_t i = 0; i < size; ++i) sent[i] += double(decoded[i]);
    }
    double worst = 0;
    for (std::size_t i = 0; i < size; ++i)
      worst = std::max(worst, std::abs(sent[i] + (double(target[i]) - double(published[i])) -
                                       double(target[i])));
    CHECK(worst < 20 * 1e-7);
  }
}

TEST_CASE("no difference encodes to scale 0 and changes not even the sign of a zero") {
  for (const Codec codec : delta_codecs) {
    if (codec.id == CodecId::fp32 || codec.id == CodecId::bf16) continue;
    CAPTURE(std::string(to_string(codec.id)));
    std::vector<float> model = {0.0f, -0.0f, 1.0f, -3e-39f, -0.0f};
    model.resize(1300, -0.0f);
    std::vector<float> published = model, received = model;
    Bytes payload(encoded_size(codec, model.size()));
    REQUIRE(encode(codec, model, published, payload));
    REQUIRE(apply(codec, payload, received, 0.0f) == ApplyError::none);
    CHECK(same_bits(published, model));
    CHECK(same_bits(received, model));
  }
}

TEST_CASE("a group that does not differ stays as it is beside one that does") {
  for (const CodecId id : {CodecId::int8, CodecId::int4, CodecId::ternary}) {
    std::vector<float> published(3 * quantiser_group, -0.0f), target = published;
    target[quantiser_group + 5] = 1.0f;
    Bytes payload(encoded_size({id}, target.size()));
    REQUIRE(encode({id}, target, published, payload));
    CHECK(std::abs(published[quantiser_group + 5] - 1.0f) < 0.01f);
    CHECK(same_bits(std::span(published).first(quantiser_group),
                    std::vector<float>(quantiser_group, -0.0f)));
    CHECK(same_bits(std::span(published).last(quantiser_group),
                    std::vector<float>(quantiser_group, -0.0f)));
  }
}

TEST_CASE(
    "a difference that is not finite or too large leaves published unchanged, wherever it stands") {
  for (const Codec codec : all_codecs) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{257}, std::size_t{2500}}) {
      for (const float bad : {nan_value, -nan_value, infinity, -infinity, 3e38f, -3e38f}) {
        if (codec.id == CodecId::keyframe && std::isfinite(bad)) continue;
        for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
          CAPTURE(std::string(to_string(codec.id)));
          CAPTURE(bad);
          Random random(9);
          std::vector<float> target = bells(random, size, 1);
          const std::vector<float> before = bells(random, size, 1);
          target[at] = bad;
          for (const Kernels* version : kernel_versions()) {
            std::vector<float> published = before;
            Bytes payload(encoded_size(codec, size));
            CHECK_FALSE(version->encode(codec, target, published, payload));
            CHECK(same_bits(published, before));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "the largest value that may be encoded arrives finite and the smallest are kept for later") {
  for (const Codec codec : delta_codecs) {
    CAPTURE(std::string(to_string(codec.id)));
    std::vector<float> target(600), published(600), received(600);
    target[0] = value_max;
    target[599] = 1e-38f;
    Bytes payload(encoded_size(codec, 600));
    REQUIRE(encode(codec, target, published, payload));
    REQUIRE(apply(codec, payload, received, infinity) == ApplyError::none);
    CHECK(same_bits(published, received));
    CHECK(std::isfinite(received[0]));
    CHECK(received[599] <= 1e-37f);
  }
}

TEST_CASE("random bytes are refused without a trace or applied to every version alike") {
  Random random(10);
  int refused = 0, applied = 0;
  for (int round = 0; round < 10000; ++round) {
    const Codec codec = all_codecs[random.below(std::size(all_codecs))];
    const std::size_t size = sizes[random.below(8)];
    Bytes payload = some_payload({CodecId::keyframe}, 1);
    payload.resize(encoded_size(codec, size));
    // Half of the rounds start from zeros with a few wrong bytes, which get past the first checks.
    if (round % 2 == 0) {
      for (std::byte& b : payload) b = static_cast<std::byte>(random.next());
    } else {
      std::fill(payload.begin(), payload.end(), std::byte{0});
      for (int n = 0; n < 3; ++n)
        payload[random.below(payload.size())] = static_cast<std::byte>(random.next());
    }
    const std::vector<float> before = bells(random, size, 1);
    std::vector<float> first = before;
    const ApplyError error = kernel_versions().front()->apply(codec, payload, first, 1e6f);
    (error == ApplyError::none ? applied : refused)++;
    bool intact = error == ApplyError::none || same_bits(first, before);
    intact =
        intact && std::all_of(first.begin(), first.end(), [](float x) { return std::isfinite(x); });
    for (const Kernels* version : kernel_versions().subspan(1)) {
      std::vector<float> other = before;
      intact =
          intact && version->apply(codec, payload, other, 1e6f) == error && same_bits(first, other);
    }
    REQUIRE_MESSAGE(intact, "round ", round, " of seed 10, codec ", to_string(codec.id), ", ", size,
                    " floats");
  }
  CHECK(refused > 1000);
  CHECK(applied > 1000);
}

TEST_CASE("a payload of another size, an unknown codec or a mirror is refused") {
  for (const Codec codec : all_codecs) {
    CAPTURE(std::string(to_string(codec.id)));
    const std::vector<float> before(700, 1.0f);
    Bytes payload = some_payload(codec, 700);
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, payload.size() - 1, payload.size() + 1}) {
      Bytes other = payload;
      other.resize(size);
      std::vector<float> received = before;
      CHECK(apply(codec, other, received, 1e6f) == ApplyError::wrong_size);
      CHECK(same_bits(received, before));
    }
  }
  std::vector<float> received(16, 1.0f);
  CHECK(apply({CodecId::mirror}, {}, received, 1e6f) == ApplyError::wrong_size);
  CHECK(apply({static_cast<CodecId>(8)}, Bytes(64), received, 1e6f) == ApplyError::malformed);
  CHECK(apply({CodecId::top_k, 0}, Bytes(6), received, 1e6f) == ApplyError::malformed);
  CHECK(apply({CodecId::top_k, 513}, Bytes(6), received, 1e6f) == ApplyError::malformed);
}

TEST_CASE("scales that are not finite, negative, tiny or huge are refused by name") {
  for (const Codec codec : {Codec{CodecId::int8}, Codec{CodecId::int4}, Codec{CodecId::ternary},
                            Codec{CodecId::top_k}}) {
    CAPTURE(std::string(to_string(codec.id)));
    const Bytes good = some_payload(codec, 1000);
    // The last scale (top_k: the larger magnitude of the one chunk), so that three groups precede
    // it.
    const std::size_t at = codec.id == CodecId::top_k ? 2 : 6;
    const auto with = [&](unsigned bits) {
      Bytes payload = good;
      put_bf16(payload, at, bits);
      return payload;
    };
    check_refused(codec, with(0x7fc0), 1000, ApplyError::not_finite);
    check_refused(codec, with(0xff80), 1000, ApplyError::not_finite);
    check_refused(codec, with(0xbf80), 1000, ApplyError::malformed);  // −1
    check_refused(codec, with(0x8000), 1000, ApplyError::malformed);  // −0
    check_refused(codec, with(0x0001), 1000, ApplyError::malformed);  // denormal
    check_refused(codec, with(0x0d7f), 1000, ApplyError::malformed);  // just below 2^-100
    check_refused(codec, with(0x7181), 1000, ApplyError::too_large, infinity);
    check_refused(codec, with(0x4780), 1000, ApplyError::too_large, 65535.0f);  // 65536
    check_refused(codec, good, 1000, ApplyError::too_large, 1e-6f);
    check_refused(codec, good, 1000, ApplyError::too_large, nan_value);
  }
}

TEST_CASE(
    "fp32, bf16 and keyframes with a value that is not finite or beyond the bound are refused") {
  for (const CodecId id : {CodecId::fp32, CodecId::bf16, CodecId::keyframe}) {
    CAPTURE(std::string(to_string(id)));
    const std::size_t width = id == CodecId::bf16 ? 2 : 4;
    const auto with = [&](unsigned bf16) {
      Bytes payload = some_payload({id}, 300);
      put_bf16(payload, 299 * width + width - 2, bf16);
      return payload;
    };
    check_refused({id}, with(0x7fc0), 300, ApplyError::not_finite);
    check_refused({id}, with(0xffc0), 300, ApplyError::not_finite);
    check_refused({id}, with(0x7f80), 300, ApplyError::not_finite);
    check_refused({id}, with(0xc780), 300, ApplyError::too_large, 65535.0f);
  }
}

TEST_CASE("codes outside their range and set bits that mean nothing are refused") {
  const auto spoilt = [](Codec codec, std::size_t size, std::size_t at, int value) {
    Bytes payload = some_payload(codec, size);
    payload[at] = static_cast<std::byte>(value);
    return payload;
  };
  check_refused({CodecId::int8}, spoilt({CodecId::int8}, 300, 4 + 299, 0x80), 300,
                ApplyError::malformed);
  check_refused({CodecId::int4}, spoilt({CodecId::int4}, 300, 4, 0x18), 300, ApplyError::malformed);
  check_refused({CodecId::int4}, spoilt({CodecId::int4}, 300, 4, 0x81), 300, ApplyError::malformed);
  // 8th of 7 codes
  check_refused({CodecId::int4}, spoilt({CodecId::int4}, 7, 2 + 3, 0x11), 7, ApplyError::malformed);
  for (const int byte : {243, 255}) {  // beyond five digits of base 3
    check_refused({CodecId::ternary}, spoilt({CodecId::ternary}, 300, 4 + 30, byte), 300,
                  ApplyError::malformed);
    check_refused({CodecId::ternary}, spoilt({CodecId::ternary}, 300, 4 + 52 + 3, byte), 300,
                  ApplyError::malformed);
  }
  // 257th of 256 codes
  check_refused({CodecId::ternary}, spoilt({CodecId::ternary}, 300, 4 + 48, 81), 300,
                ApplyError::malformed);
  // 8th of 7 codes
  check_refused({CodecId::ternary}, spoilt({CodecId::ternary}, 7, 2 + 1, 27), 7,
                ApplyError::malformed);
}

TEST_CASE(
    "top-k indices that repeat, descend, leave a short last chunk or are too few or too many are "
    "refused") {
  const Codec codec{CodecId::top_k, 100};
  // 100 floats after one full chunk keep 10 entries, l = 3: 22 bits of high parts, 20 of values, 30
  // of low parts, in 9 bytes.
  const std::size_t last = encoded_size(codec, 1024) + 4;
  REQUIRE(encoded_size(codec, 1124) == last + 9);
  const auto with = [&](const std::vector<int>& indices) {
    Bytes payload = some_payload(codec, 1124);
    std::fill(payload.begin() + static_cast<std::ptrdiff_t>(last), payload.end(), std::byte{0});
    const auto set = [&](std::size_t bit) {
      payload[last + bit / 8] |= static_cast<std::byte>(1 << bit % 8);
    };
    for (std::size_t e = 0; e < indices.size(); ++e) {
      set(static_cast<std::size_t>(indices[e] / 8) + e);
      for (std::size_t bit = 0; bit < 3; ++bit)
        if (indices[e] >> bit & 1) set(42 + 3 * e + bit);
    }
    return payload;
  };
  const auto ten = [](int first, int second) {
    return std::vector<int>{first, second, 20, 30, 40, 50, 60, 70, 80, 99};
  };
  std::vector<float> received(1124);
  CHECK(apply(codec, with(ten(5, 6)), received, 1e6f) == ApplyError::none);
  // outside
  check_refused(codec, with({1, 2, 20, 30, 40, 50, 60, 70, 80, 100}), 1124, ApplyError::malformed);
  check_refused(codec, with(ten(5, 5)), 1124, ApplyError::malformed);
  check_refused(codec, with(ten(6, 5)), 1124, ApplyError::malformed);
  check_refused(codec, with({1, 2, 20, 30, 40, 50, 60, 70, 80}), 1124, ApplyError::malformed);
  Bytes more = with(ten(5, 6));
  more[last] |= std::byte{0x04};  // an eleventh
  check_refused(codec, more, 1124, ApplyError::malformed);
  // 3 entries of a full chunk, l = 8: 6 + 6 + 24 bits in 5 bytes.
  Bytes spare = some_payload({CodecId::top_k, 3}, 1024);
  REQUIRE(spare.size() == 4 + 5);
  spare.back() |= std::byte{0x10};  // bits after the last field
  check_refused({CodecId::top_k, 3}, spare, 1024, ApplyError::malformed);
}

TEST_CASE("top-k keeps the largest differences and of equal ones the first") {
  std::vector<float> target(1024, 0.5f), published(1024);
  target[1000] = -3.0f;
  target[7] = 1.0f;
  Bytes payload(encoded_size({CodecId::top_k, 4}, 1024));
  REQUIRE(encode({CodecId::top_k, 4}, target, published, payload));
  std::vector<float> expected(1024);
  // Larger magnitude: 3. Smaller: the mean of 1, 0.5 and 0.5, rounded to bf16.
  expected[0] = expected[1] = expected[7] = 0.66796875f;
  expected[1000] = -3.0f;
  CHECK(same_bits(published, expected));
}

TEST_CASE("top-k keeps in proportion in a short chunk, at least one and never more than it has") {
  for (std::size_t size = 1; size < 1024; ++size) {
    for (const std::uint16_t keep : {1, 32, 511, 512}) {
      std::vector<float> target(size), published(size);
      for (std::size_t i = 0; i < size; ++i) target[i] = 1.0f + static_cast<float>((i * 37) % size);
      Bytes payload(encoded_size({CodecId::top_k, keep}, size));
      REQUIRE(encode({CodecId::top_k, keep}, target, published, payload));
      const auto kept = static_cast<std::size_t>(
          std::count_if(published.begin(), published.end(), [](float x) { return x != 0; }));
      const std::size_t expected = std::max<std::size_t>(1, (keep * size + 512) / 1024);
      REQUIRE_MESSAGE(kept == expected, size, " floats, keep ", keep);
    }
  }
}

TEST_CASE("the worked examples of FORMAT.md are the bytes that are sent") {
  // Differences from a replica of zeros.
  const std::vector<float> five = {1.0f, -0.5f, 0.25f, 0.0f, -2.0f};
  const auto bytes = [&](Codec codec) { return encoded(codec, five, std::vector<float>(5)); };
  const Bytes fp32 =
      bytes_of({0, 0, 0x80, 0x3f, 0, 0, 0, 0xbf, 0, 0, 0x80, 0x3e, 0, 0, 0, 0, 0, 0, 0, 0xc0});
  CHECK(bytes({CodecId::keyframe}) == fp32);
  CHECK(bytes({CodecId::fp32}) == fp32);
  CHECK(bytes({CodecId::bf16}) ==
        bytes_of({0x80, 0x3f, 0x00, 0xbf, 0x80, 0x3e, 0x00, 0x00, 0x00, 0xc0}));
  CHECK(bytes({CodecId::int8}) == bytes_of({0x82, 0x3c, 63, 0xe0, 16, 0, 0x82}));
  CHECK(bytes({CodecId::int4}) == bytes_of({0x93, 0x3e, 0x03, 0x9e, 0x01}));
  CHECK(bytes({CodecId::ternary}) == bytes_of({0xc0, 0x3f, 0xa3}));
  CHECK(bytes({CodecId::top_k, 400}) == bytes_of({0x80, 0x3f, 0x00, 0x40, 0xc9, 0x00}));
}
