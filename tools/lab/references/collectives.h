// tools/lab/references/collectives.h - all-reduce algorithms, carried out with real chunks of
// floats between nodes.
//
// Every node's vector becomes the mean of all, bit-identical everywhere, since each float is summed
// on one node and copied from there. A chunk is sent as soon as its inputs are there, so a slow
// line delays exactly what depends on it. The vectors belong to the caller and must not move until
// `done`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace gossipd::lab {

enum class AllReduce {
  ring,  // reduce-scatter and all-gather around a ring: 2(N−1) rounds of P/N floats
  // Rabenseifner's: 2·log2 N rounds; nodes beyond a power of two hand their vector to a partner
  halving_doubling,
  tree,  // binomial: sums up to node 0, then copies down
};

// How a float travels. fp16: rounded at every hop, as a reduction in half precision does.
enum class WireFloat { fp32, fp16 };
[[nodiscard]] constexpr std::uint64_t bytes_of(WireFloat format) {
  return format == WireFloat::fp32 ? 4 : 2;
}
// Rounds to the nearest half-precision value; infinite beyond its range.
[[nodiscard]] float round_to_half(float);

// from, to, bytes, and what to run on arrival.
using Send = std::function<void(std::size_t, std::size_t, std::uint64_t, std::function<void()>)>;

struct AllReducePlan {
  AllReduce algorithm = AllReduce::ring;
  WireFloat format = WireFloat::fp32;
};

void all_reduce_mean(AllReducePlan, const Send&, std::vector<std::span<float>> values,
                     std::function<void()> done);

// The cost model: the bytes of all nodes, and the time on equal full-duplex lines.
[[nodiscard]] std::uint64_t all_reduce_bytes(AllReducePlan, std::size_t nodes,
                                             std::uint64_t floats);
[[nodiscard]] double all_reduce_seconds(AllReducePlan, std::size_t nodes, std::uint64_t floats,
                                        double latency_s, double bits_per_s);

// The c-th of `parts` nearly equal runs of [0, floats).
struct Range {
  std::size_t begin = 0, end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
  [[nodiscard]] std::span<float> of(std::span<float> all) const {
    return all.subspan(begin, size());
  }
};
[[nodiscard]] constexpr Range part_of(std::size_t floats, std::size_t parts, std::size_t c) {
  return {floats * c / parts, floats * (c + 1) / parts};
}

}  // namespace gossipd::lab
