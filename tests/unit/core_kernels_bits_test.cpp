// The bits that codecs and mixing write, as digests: the same on every instruction set and
// architecture, since nodes of both may share a link. `tests/run.sh --only arm64` runs this on ARM.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "core/base/random.h"
#include "core/codec/kernels.h"

using namespace gossipd;

namespace {

constexpr std::size_t floats = 5000;  // whole chunks, a part of one and an odd end

// What training leaves between two deltas: mostly bells, some zeros, ties, tiny and large ones.
void wander(Random& random, std::vector<float>& model) {
  const float scale = std::ldexp(1.0f, -static_cast<int>(random.below(20)));
  for (float& x : model) {
    const auto bell =
        static_cast<float>(random.uniform() + random.uniform() + random.uniform() - 1.5);
    const float steps[] = {0, 0.25f * scale, 1e-20f * bell, 8 * scale * bell};
    const std::size_t kind = random.below(8);
    x += kind < std::size(steps) ? steps[kind] : scale * bell;
  }
}

class Digest {
 public:
  explicit Digest(const Kernels& kernels) : kernels_(kernels) {}

  void add(const void* bytes, std::size_t size) {
    std::vector<float> words((size + 3) / 4 + 4);
    std::memcpy(words.data(), &state_, sizeof state_);
    std::memcpy(words.data() + 4, bytes, size);
    state_ = kernels_.hash(words);
  }
  void add(const std::vector<float>& values) { add(values.data(), 4 * values.size()); }
  void add(double value) { add(&value, sizeof value); }
  [[nodiscard]] std::uint64_t state() const { return state_; }

 private:
  const Kernels& kernels_;
  std::uint64_t state_ = 0;
};

// Ten deltas of a model that wanders: their bytes, what was published and what they add up to.
std::uint64_t digest_of_deltas(const Kernels& k, Codec codec) {
  Digest digest(k);
  Random random(7);
  std::vector<float> model(floats), published(floats), received(floats);
  Bytes payload(encoded_size(codec, floats));
  for (int turn = 0; turn < 10; ++turn) {
    wander(random, model);
    REQUIRE(k.encode(codec, model, published, payload));
    REQUIRE(k.apply(codec, payload, received, 1e9f) == ApplyError::none);
    digest.add(payload.data(), payload.size());
    digest.add(published);
    digest.add(received);
  }
  return digest.state();
}

std::uint64_t digest_of_mixing(const Kernels& k) {
  Digest digest(k);
  Random random(8);
  std::vector<float> a(floats), b(floats), update(floats), target(floats);
  for (int turn = 0; turn < 10; ++turn) {
    wander(random, a);
    wander(random, b);
    digest.add(k.transfer(update, a, b, 0.3f));
    const ChangeNorms change = k.change(a, update, b), distance = k.distance(a, b);
    const MovementNorms moved = k.movement(a, b);
    for (const double norm :
         {change.change_squared, change.reference_squared, distance.change_squared,
          distance.reference_squared, moved.moved_squared, moved.before_squared, moved.now_squared})
      digest.add(norm);
    CHECK(k.sum(target, a, update));
    digest.add(target);
    k.contract_replicas(a, b, 0.25f, 0.4f);
    k.drift(update, a, target, 0.125f, 0.1f);
    k.take_back(target, b, 0.5f);
    digest.add(k.axpy(b, target, 0.7f));
    for (const auto& values : {a, b, update, target}) digest.add(values);
  }
  std::vector<std::uint16_t> narrow(floats);
  k.narrow(narrow, a);
  digest.add(narrow.data(), 2 * floats);
  return digest.state();
}

}  // namespace

TEST_CASE("deltas have the same bytes on every instruction set and architecture") {
  constexpr struct {
    Codec codec;
    std::uint64_t digest;
  } known[] = {
      {{CodecId::fp32}, 0xfcaf9bb065f85bfc},      {{CodecId::bf16}, 0xfa6de2b3297f154d},
      {{CodecId::int8}, 0xabbce25fe47367cd},      {{CodecId::int4}, 0x802e89a378d661be},
      {{CodecId::ternary}, 0x355e2d4b0775fdc2},   {{CodecId::top_k, 1}, 0x6a3b89986bdc95e1},
      {{CodecId::top_k, 64}, 0x2f9ac21cbb133908}, {{CodecId::top_k, 512}, 0xad9110cabc13c45d},
  };
  for (const Kernels* version : kernel_versions()) {
    for (const auto& expected : known) {
      CAPTURE(version->name);
      CAPTURE(to_string(expected.codec.id));
      CAPTURE(expected.codec.keep);
      CHECK(digest_of_deltas(*version, expected.codec) == expected.digest);
    }
  }
}

TEST_CASE("mixing leaves the same bits on every instruction set and architecture") {
  for (const Kernels* version : kernel_versions()) {
    CAPTURE(version->name);
    CHECK(digest_of_mixing(*version) == 0xcf85c88d122402f2);
  }
}
