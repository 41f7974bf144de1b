// tools/lab/references/collectives.h - all-reduce algorithms, really carried out: chunks of floats
// from node to node.
//
// Every node's vector ends as the mean of all, the same bits everywhere: each float is finally
// summed on one node and copied from there. Chunks are sent when their node has what it needs for
// them, so a slow line delays exactly what depends on it. The vectors are the caller's and stay put
// until `done`.
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
  tree,  // binomial: sum up to node 0, then down again
};

// How a float travels. fp16: rounded at every hop, as a reduction in half precision does.
enum class WireFloat { fp32, fp16 };
[[nodiscard]] constexpr std::uint64_t bytes_of(WireFloat format) {
  return format == WireFloat::fp32 ? 4 : 2;
}
// To the nearest half-precision value; beyond its range infinite.
[[nodiscard]] float round_to_half(float);

// from, to, bytes, what to run when they have arrived.
using Send = std::function<void(std::size_t, std::size_t, std::uint64_t, std::function<void()>)>;

struct AllReducePlan {
  AllReduce algorithm = AllReduce::ring;
  WireFloat format = WireFloat::fp32;
};

void all_reduce_mean(AllReducePlan, const Send&, std::vector<std::span<float>> values,
                     std::function<void()> done);

// The cost model: what all nodes send together, and the time on equal full-duplex lines.
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
