// tests/unit/blocks_equal.h - that a device computes bit for bit what core/codec's kernels do: for
// the kernels compiled as C++ (unit tests) and for a GPU (tests/gpu).
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/random.h"
#include "core/codec/kernels_format.h"
#include "core/codec/sparse_sum.h"
#include "models/blocks/device_blocks.h"

namespace gossipd::blocks {

// What vectors hold: noise as in training; magnitudes so far apart that fp64 rounds their sums;
// few different values, so that many are equal; the smallest there are; hardly any change.
enum class Content : std::uint8_t { noise, far_apart, equal, tiny, still };
inline constexpr std::array contents = {Content::noise, Content::far_apart, Content::equal,
                                        Content::tiny, Content::still};

// One block: on the host, as both ends know it, and where it lies on the device.
struct TestBlock {
  std::vector<float> model, update, published, received;
  std::vector<std::uint16_t> narrow_published, narrow_received;

  TestBlock(std::size_t floats, Content content, Random& random)
      : model(floats), update(floats), published(floats), received(floats) {
    for (std::size_t i = 0; i < floats; ++i) {
      const auto noise = [&] { return static_cast<float>(random.uniform() - 0.5); };
      model[i] = noise();
      update[i] = 0.01f * noise();
      published[i] = model[i] + 0.02f * noise();
      received[i] = model[i] + 0.05f * noise();
      switch (content) {
        case Content::noise: break;
        case Content::far_apart:
          model[i] = std::ldexp(noise(), static_cast<int>(random.below(120)) - 60);
          published[i] = std::ldexp(noise(), static_cast<int>(random.below(120)) - 60);
          break;
        case Content::equal:
          model[i] = static_cast<float>(random.below(3));
          update[i] = -0.0f;
          published[i] = 1;
          received[i] = random.below(2) == 0 ? -0.0f : 1.0f;
          break;
        case Content::tiny:
          model[i] = std::ldexp(noise(), -130 - static_cast<int>(random.below(18)));
          update[i] = 0;
          published[i] = std::ldexp(noise(), -140);
          received[i] = std::ldexp(noise(), -145);
          break;
        case Content::still:
          update[i] = 0;
          published[i] = received[i] = model[i];
          if (random.below(4000) == 0) model[i] += 1;
      }
    }
    for (const auto& [wide, narrow] :
         {std::pair{&published, &narrow_published}, std::pair{&received, &narrow_received}}) {
      narrow->resize(floats);
      kernels().narrow(*narrow, *wide);
    }
  }
  [[nodiscard]] std::size_t floats() const { return model.size(); }
  // What a codec sees of it.
  [[nodiscard]] std::vector<float> target(bool narrow) const {
    std::vector<float> out(floats());
    (void)kernels().sum(out, model, update);
    if (narrow) kernels().round(out);
    return out;
  }
};

// Blocks on a device.
class OnDevice {
 public:
  OnDevice(Device& device, bool narrow, const std::vector<TestBlock>& blocks)
      : device_(device), narrow_(narrow), blocks_(blocks), memory_(device) {
    std::size_t bytes = 0;
    const auto place = [&](std::size_t size) {
      return std::exchange(bytes, bytes + (size + 15) / 16 * 16);
    };
    const std::size_t of_replica = narrow ? 2 : 4;
    for (const TestBlock& block : blocks) {
      const std::size_t floats = block.floats();
      Item item{};
      item.model = place(4 * floats);
      item.update = place(4 * floats);
      item.published = place(of_replica * floats);
      item.received = place(of_replica * floats);
      item.floats = static_cast<u32>(floats);
      items_.push_back(item);
    }
    const u64 first = memory_.of(bytes);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const TestBlock& block = blocks[b];
      Item& item = items_[b];
      for (u64* address : {&item.model, &item.update, &item.published, &item.received})
        *address += first;
      put(item.model, block.model);
      put(item.update, block.update);
      narrow ? put(item.published, block.narrow_published) : put(item.published, block.published);
      narrow ? put(item.received, block.narrow_received) : put(item.received, block.received);
    }
  }
  [[nodiscard]] std::vector<Item>& items() { return items_; }
  template <typename T>
  void put(u64 to, const std::vector<T>& values) {
    device_.upload(to, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  void check(u64 from, const std::vector<T>& wanted) {
    std::vector<T> found(wanted.size());
    device_.download(found.data(), from, found.size() * sizeof(T));
    CHECK(std::memcmp(found.data(), wanted.data(), found.size() * sizeof(T)) == 0);
  }

 private:
  Device& device_;
  const bool narrow_;
  const std::vector<TestBlock>& blocks_;
  std::vector<Item> items_;
  DeviceMemory memory_;
};

inline std::vector<TestBlock> test_blocks(Content content, std::uint64_t seed) {
  Random random(seed);
  std::vector<TestBlock> out;
  for (const std::size_t floats :
       {1,   2,   3,   5,    15,   16,   17,   59,   60,   61,    100,  127,
        128, 129, 500, 1000, 1023, 1024, 1025, 2047, 5000, 65535, 65536})
    out.emplace_back(floats, content, random);
  return out;
}

inline bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
inline bool same(const ChangeNorms& a, const ChangeNorms& b) {
  return same(a.change_squared, b.change_squared) && same(a.reference_squared, b.reference_squared);
}

// Sums in an order, hashes, and mixing.
inline void check_measures(Device& device, bool narrow, const std::vector<TestBlock>& blocks) {
  OnDevice there(device, narrow, blocks);
  DeviceBlocks ops(device, narrow);
  constexpr float gain = 0.37f, other_gain = 0.21f;
  const float cut = blocks.front().update[0] == 0 ? 1 : 0.003f;  // 1 is a difference of equals
  for (Item& item : there.items()) item.gain = gain, item.other_gain = other_gain;
  const auto change = ops.change(there.items());
  const auto distance = ops.distance(there.items());
  const auto survey = ops.survey(there.items(), cut);
  const auto hash = ops.hash_received(there.items());
  const auto squares = ops.transfer(there.items());
  ops.contract(there.items());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    TestBlock block = blocks[b];
    CAPTURE(block.floats());
    const Kernels& k = kernels();
    const std::vector<float> target = block.target(narrow);
    std::vector<float> published = block.published, received = block.received;
    if (narrow) {
      k.widen(published, block.narrow_published);
      k.widen(received, block.narrow_received);
    }
    CHECK(survey[b].apart == k.count_apart(target, published, cut));
    CHECK((survey[b].differs != 0) == !std::ranges::equal(target, published));
    CHECK((survey[b].peak_of_sum < format::infinity_bits) ==
          k.sum(received, block.model, block.update));
    narrow ? k.widen(received, block.narrow_received) : void(received = block.received);
    CHECK(hash[b] == k.hash(received));
    if (narrow) {
      CHECK(same(change[b], k.narrow_change(block.model, block.update, block.narrow_published)));
      CHECK(same(distance[b], k.narrow_distance(block.narrow_received, block.narrow_published)));
      CHECK(same(squares[b], k.narrow_transfer(block.update, block.narrow_received,
                                               block.narrow_published, gain)));
      k.narrow_contract(block.narrow_published, block.narrow_received, gain, other_gain);
      there.check(there.items()[b].published, block.narrow_published);
      there.check(there.items()[b].received, block.narrow_received);
    } else {
      CHECK(same(change[b], k.change(block.model, block.update, block.published)));
      CHECK(same(distance[b], k.distance(block.received, block.published)));
      CHECK(same(squares[b], k.transfer(block.update, block.received, block.published, gain)));
      k.contract_replicas(block.published, block.received, gain, other_gain);
      there.check(there.items()[b].published, block.published);
      there.check(there.items()[b].received, block.received);
    }
    there.check(there.items()[b].update, block.update);
  }
}

// Those that can be encoded, as survey() says, which has to be what encode() says.
inline std::vector<TestBlock> encodable(Device& device, bool narrow,
                                        const std::vector<TestBlock>& blocks) {
  OnDevice there(device, narrow, blocks);
  DeviceBlocks ops(device, narrow);
  const auto survey = ops.survey(there.items(), 0);
  std::vector<TestBlock> out;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::vector<float> published = blocks[b].published;
    const Codec codec{CodecId::top_k, 64};
    std::vector<std::byte> bytes(encoded_size(codec, published.size()));
    const bool can = encode(codec, blocks[b].target(narrow), published, bytes);
    CHECK((survey[b].peak <= format::value_max_bits) == can);
    if (can) out.push_back(blocks[b]);
  }
  return out;
}

// Payloads of all blocks, and `published` after them.
inline std::vector<std::byte> check_encode(Device& device, bool narrow, std::uint16_t keep,
                                           const std::vector<TestBlock>& blocks) {
  OnDevice there(device, narrow, blocks);
  DeviceBlocks ops(device, narrow);
  for (Item& item : there.items()) item.keep = keep;
  Payloads found_payloads(device);
  ops.encode(there.items(), found_payloads);
  const std::span<const std::byte> found = found_payloads.here();
  std::vector<std::byte> wanted;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    CAPTURE(blocks[b].floats());
    std::vector<float> published = blocks[b].published;
    if (narrow) kernels().widen(published, blocks[b].narrow_published);
    const Codec codec{CodecId::top_k, keep};
    std::vector<std::byte> bytes(encoded_size(codec, published.size()));
    REQUIRE(encode(codec, blocks[b].target(narrow), published, bytes));
    REQUIRE(wanted.size() + bytes.size() <= found.size());
    CHECK(std::equal(bytes.begin(), bytes.end(),
                     found.begin() + static_cast<std::ptrdiff_t>(wanted.size())));
    wanted.insert(wanted.end(), bytes.begin(), bytes.end());
    if (narrow) {
      std::vector<std::uint16_t> narrowed(published.size());
      kernels().narrow(narrowed, published);
      there.check(there.items()[b].published, narrowed);
    } else {
      there.check(there.items()[b].published, published);
    }
  }
  CHECK(found.size() == wanted.size());
  return wanted;
}

// How many were refused.
inline std::size_t check_apply(Device& device, bool narrow, std::uint16_t keep, float magnitude_max,
                               const std::vector<TestBlock>& blocks,
                               const std::vector<std::byte>& payloads) {
  OnDevice there(device, narrow, blocks);
  DeviceBlocks ops(device, narrow);
  for (Item& item : there.items()) item.keep = keep;
  Payloads in(device);
  in.arrange(there.items());
  REQUIRE(in.here().size() == payloads.size());
  std::ranges::copy(payloads, in.here().begin());
  const auto errors = ops.apply(there.items(), in, magnitude_max);
  std::size_t at = 0, refused = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    CAPTURE(blocks[b].floats());
    const Codec codec{CodecId::top_k, keep};
    const std::size_t size = encoded_size(codec, blocks[b].floats());
    std::vector<float> received = blocks[b].received;
    if (narrow) kernels().widen(received, blocks[b].narrow_received);
    CHECK(errors[b] ==
          apply(codec, std::span(payloads).subspan(at, size), received, magnitude_max));
    refused += errors[b] != ApplyError::none ? 1 : 0;
    at += size;
    if (narrow) {
      std::vector<std::uint16_t> narrowed(received.size());
      kernels().narrow(narrowed, received);
      there.check(there.items()[b].received, narrowed);
    } else {
      there.check(there.items()[b].received, received);
    }
  }
  return refused;
}

// What outer momentum adds: of one payload of each block, or of two.
inline void check_moved(Device& device, const std::vector<TestBlock>& blocks, std::uint16_t keep,
                        const std::vector<std::byte>& payloads, std::uint16_t other_keep,
                        const std::vector<std::byte>& others) {
  OnDevice there(device, false, blocks);
  DeviceBlocks ops(device, false);
  Payloads first(device), second(device);
  const auto lay = [&](Payloads& in, std::uint16_t entries, const std::vector<std::byte>& bytes) {
    for (Item& item : there.items()) item.keep = entries;
    in.arrange(there.items());
    REQUIRE(in.here().size() == bytes.size());
    std::ranges::copy(bytes, in.here().begin());
    in.upload();
  };
  if (other_keep > 0) lay(second, other_keep, others);
  for (Item& item : there.items()) item.other_payload = item.payload, item.other_keep = other_keep;
  lay(first, keep, payloads);
  const auto moved = ops.moved(there.items());
  constexpr float share = 0.43f;
  for (Item& item : there.items()) item.gain = share;
  ops.add_moved(there.items());
  std::size_t at = 0, other_at = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    CAPTURE(blocks[b].floats());
    SparseSum sum(blocks[b].floats());
    const auto add = [&](std::uint16_t entries, const std::vector<std::byte>& from,
                         std::size_t& place) {
      const std::size_t size = encoded_size({CodecId::top_k, entries}, blocks[b].floats());
      sum.add(entries, std::span(from).subspan(std::exchange(place, place + size), size));
    };
    add(keep, payloads, at);
    if (other_keep > 0) add(other_keep, others, other_at);
    sum.finish();
    CHECK(same(moved[b].squares, sum.squares()));
    CHECK(moved[b].places == sum.count());
    std::vector<float> update = blocks[b].update;
    sum.add_to(update, share);
    there.check(there.items()[b].update, update);
  }
}

// Payloads with flipped bits, applied: as many were refused.
inline std::size_t check_refusals(Device& device, int rounds) {
  Random random(11);
  std::size_t refused = 0;
  for (int round = 0; round < rounds; ++round)
    for (const std::uint16_t keep : {1, 64, 512}) {
      CAPTURE(round);
      CAPTURE(keep);
      const auto blocks = test_blocks(Content::noise, 12);
      auto payloads = check_encode(device, false, keep, blocks);
      for (std::size_t flips = 0; flips < payloads.size() / 200 + 1; ++flips)
        payloads[random.below(payloads.size())] ^= std::byte{1} << random.below(8);
      refused += check_apply(device, round % 2 == 1, keep, round % 3 == 0 ? 0.004f : 1e3f, blocks,
                             payloads);
    }
  return refused;
}

}  // namespace gossipd::blocks
