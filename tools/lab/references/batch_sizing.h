// tools/lab/references/batch_sizing.h - divides a fixed global batch so that all machines take
// equally long.
//
// Fits step times online as t(b) = a + c·b with a forgetting factor. While the observed batches are
// too similar to separate a from c, keeps the last a. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace gossipd::lab {

class StepTimeFit {
 public:
  void observe(double batch, double seconds);
  [[nodiscard]] double base_s() const { return base_; }  // a
  // c; 0 before the first observation
  [[nodiscard]] double per_sample_s() const { return per_sample_; }

 private:
  double weight_ = 0, b_ = 0, t_ = 0, bb_ = 0, bt_ = 0;  // decaying sums
  double base_ = 0, per_sample_ = 0;
};

// b_i in [least, most] with Σ b_i = total where the bounds allow, and a_i + c_i·b_i as equal as
// whole numbers permit.
[[nodiscard]] std::vector<std::uint32_t> balanced_batches(const std::vector<StepTimeFit>&,
                                                          std::uint64_t total, std::uint32_t least,
                                                          std::uint32_t most);

}  // namespace gossipd::lab
