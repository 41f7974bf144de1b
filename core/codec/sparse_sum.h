// core/codec/sparse_sum.h - what a few top-k deltas of one block add up to, in the size of their
// entries.
//
// The same sums as applying each of them to zeros, one after the other, and looking for what is not
// zero then, but without passes over the whole block. Pure; one owner.
#pragma once

#include <vector>

#include "core/codec/codec.h"

namespace gossipd {

class SparseSum {
 public:
  explicit SparseSum(std::size_t floats) : floats_(floats) {}

  // Of a payload that apply() has taken; with keep 1 … top_k_keep_max. All before finish().
  void add(std::uint16_t keep, std::span<const std::byte> payload);
  void finish();

  [[nodiscard]] std::size_t count() const { return index_.size(); }  // of what is not zero
  [[nodiscard]] double squares() const { return squares_; }          // added front to back
  // y += a · the sum
  void add_to(std::span<float> y, float a) const;

 private:
  struct Delta {
    std::size_t keep;
    std::vector<std::uint16_t> index;  // in its chunk
    std::vector<float> difference;
  };

  std::size_t floats_;
  std::vector<Delta> deltas_;
  std::vector<std::uint32_t> index_;  // ascending
  std::vector<float> value_;
  double squares_ = 0;
};

}  // namespace gossipd
