// tools/lab/data_split.h - divides a data set between nodes so that their labels are alike or
// skewed.
//
// Pure functions of the seed; every sample goes to exactly one node, no node gets none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gossipd {

// Samples of each of `nodes` nodes. For every class the shares of the nodes are drawn from a
// symmetric Dirichlet distribution with parameter `alpha` > 0 (Hsu, Qi, Brown 2019,
// arXiv:1909.06335): 100 is almost alike, 0.3 leaves most nodes a few classes. Nodes may hold very
// different numbers of samples; with `equal_sizes` the largest shards give their surplus to the
// smallest, so that only the labels differ.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> split_by_dirichlet(
    std::span<const std::uint8_t> labels, std::size_t nodes, double alpha, bool equal_sizes,
    std::uint64_t seed);

}  // namespace gossipd
