// core/exchange/replica.h - a replica of a model, block by block: in fp32, or in bf16, which takes
// half the memory.
//
// In bf16 every change ends by rounding to nearest, ties to even. Both ends of a link keep their
// replicas in one format and change them at the same moments by the same arithmetic, so these stay
// bit-identical; what rounding lost is in the difference between model and replica, which the next
// delta carries. One owner.
//
// A block has no value until it has been put, and is not looked at before: the memory of a large
// model is touched block by block as the blocks come, not all of it where a link opens.
#pragma once

#include <algorithm>
#include <bit>
#include <memory>

#include "core/codec/kernels.h"
#include "core/model/schema.h"

namespace gossipd {

// Of two values that bf16 can hold, whether they are equal or have none between them.
[[nodiscard]] inline bool are_adjacent_bf16(float a, float b) {
  const auto place = [](float x) {
    const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    return bits < 0x8000 ? bits : 0x8000 - bits;
  };
  const std::int32_t distance = place(a) - place(b);
  return distance >= -1 && distance <= 1;
}

class Replica {
 public:
  void reset(std::size_t floats, bool narrow) {
    clear();
    floats_ = floats;
    narrow_ = narrow;
    if (narrow)
      narrow_values_ = std::make_unique_for_overwrite<std::uint16_t[]>(floats);
    else
      wide_values_ = std::make_unique_for_overwrite<float[]>(floats);
  }
  void clear() {
    floats_ = 0;
    wide_values_.reset();
    narrow_values_.reset();
  }
  [[nodiscard]] std::size_t floats() const { return floats_; }
  [[nodiscard]] bool is_narrow() const { return narrow_; }

  // A block to be looked at; in bf16 a copy.
  class Look {
   public:
    Look(const Replica& replica, const Block& block) {
      if (!replica.narrow_) {
        values_ = replica.wide_of(block);
        return;
      }
      copy_.resize(block.size);
      kernels().widen(copy_, replica.narrow_of(block));
      values_ = copy_;
    }
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    operator std::span<const float>() const { return values_; }  // NOLINT: stands for them

   private:
    std::vector<float> copy_;
    std::span<const float> values_;
  };

  // A block to be changed; in bf16 rounded and kept when the object goes. Nobody else looks at the
  // block meanwhile.
  class Change {
   public:
    Change(Replica& replica, const Block& block) : replica_(replica), block_(block) {
      if (!replica.narrow_) {
        values_ = replica.wide_of(block);
        return;
      }
      copy_.resize(block.size);
      kernels().widen(copy_, replica.narrow_of(block));
      values_ = copy_;
    }
    ~Change() {
      if (replica_.narrow_) kernels().narrow(replica_.narrow_of(block_), values_);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    operator std::span<float>() const { return values_; }  // NOLINT: stands for them

   private:
    Replica& replica_;
    const Block& block_;
    std::vector<float> copy_;
    std::span<float> values_;
  };

  void put(const Block& block, std::span<const float> values) {
    narrow_ ? kernels().narrow(narrow_of(block), values)
            : void(std::copy(values.begin(), values.end(), wide_of(block).begin()));
  }

  // As they would be kept.
  void round(std::span<float> values) const {
    if (!narrow_) return;
    std::vector<std::uint16_t> kept(values.size());
    kernels().narrow(kept, values);
    kernels().widen(values, kept);
  }

 private:
  [[nodiscard]] std::span<float> wide_of(const Block& block) {
    return block.of(std::span(wide_values_.get(), floats_));
  }
  [[nodiscard]] std::span<const float> wide_of(const Block& block) const {
    return block.of(std::span<const float>(wide_values_.get(), floats_));
  }
  [[nodiscard]] std::span<std::uint16_t> narrow_of(const Block& block) {
    return std::span(narrow_values_.get(), floats_).subspan(block.offset, block.size);
  }
  [[nodiscard]] std::span<const std::uint16_t> narrow_of(const Block& block) const {
    return std::span<const std::uint16_t>(narrow_values_.get(), floats_)
        .subspan(block.offset, block.size);
  }

  std::size_t floats_ = 0;
  bool narrow_ = false;
  std::unique_ptr<float[]> wide_values_;  // one of the two is empty
  std::unique_ptr<std::uint16_t[]> narrow_values_;
};

}  // namespace gossipd
