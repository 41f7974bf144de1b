#include "core/codec/sparse_sum.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/base/result.h"
#include "core/codec/kernels.h"
#include "core/codec/kernels_format.h"

namespace gossipd {

void SparseSum::add(std::uint16_t keep, std::span<const std::byte> payload) {
  GOSSIPD_ASSERT(payload.size() == encoded_size({CodecId::top_k, keep}, floats_));
  const std::size_t chunks = (floats_ + top_k_chunk - 1) / top_k_chunk;
  const std::size_t room = chunks * keep + top_k_spare;
  Delta delta{.keep = keep,
              .index = std::vector<std::uint16_t>(room),
              .difference = std::vector<float>(room)};
  if (kernels().top_k_entries(keep, payload, floats_, delta.index.data(), delta.difference.data()))
    deltas_.push_back(std::move(delta));
}

// One chunk after the other: its sums lie in `sum`, and `touched` tells where.
void SparseSum::finish() {
  std::array<float, top_k_chunk> sum{};
  std::size_t room = 0;
  for (const Delta& delta : deltas_) room += delta.index.size();
  index_.resize(room);
  value_.resize(room);
  std::vector<std::size_t> begins(deltas_.size());
  std::size_t count = 0;
  for (std::size_t first = 0; first < floats_; first += top_k_chunk) {
    std::array<std::uint64_t, top_k_chunk / 64> touched{};
    for (std::size_t d = 0; d < deltas_.size(); ++d) {
      const std::size_t entries =
          format::kept(deltas_[d].keep, std::min(top_k_chunk, floats_ - first));
      for (const std::size_t end = begins[d] + entries; begins[d] < end; ++begins[d]) {
        const std::size_t i = deltas_[d].index[begins[d]];
        sum[i] += deltas_[d].difference[begins[d]];
        touched[i / 64] |= std::uint64_t{1} << (i % 64);
      }
    }
    for (std::size_t word = 0; word < touched.size(); ++word) {
      for (std::uint64_t bits = touched[word]; bits != 0; bits &= bits - 1) {
        const std::size_t i = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
        const float value = std::exchange(sum[i], 0.0f);
        index_[count] = static_cast<std::uint32_t>(first + i);
        value_[count] = value;
        count += value != 0 ? 1 : 0;
        squares_ += static_cast<double>(value) * static_cast<double>(value);
      }
    }
  }
  index_.resize(count);
  value_.resize(count);
}

void SparseSum::add_to(std::span<float> y, float a) const {
  for (std::size_t e = 0; e < index_.size(); ++e) y[index_[e]] += a * value_[e];
}

}  // namespace gossipd
