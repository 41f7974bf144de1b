// core/exchange/replica.h - a replica of a model, block by block: in fp32, or in bf16, which takes
// half the memory.
//
// In bf16 every change ends by rounding to nearest, ties to even. Both ends of a link keep their
// replicas in one format and change them at the same moments by the same arithmetic, so these stay
// bit-identical; what rounding lost is in the difference between model and replica, which the next
// delta carries. One owner.
//
// A block has no value until it has been put, and is not looked at before: the memory of a large
// model is touched block by block as the blocks come, not all of it where a link opens. Where both
// ends begin with a model that they hold already, each block is borrowed from it until its first
// change.
#pragma once

#include <algorithm>
#include <memory>

#include "core/base/large_memory.h"
#include "core/codec/kernels.h"
#include "core/model/schema.h"

namespace gossipd {

// A model that several own and nobody changes.
using SharedModel = std::shared_ptr<const std::vector<float>>;

class Replica {
 public:
  void reset(std::size_t floats, bool narrow) {
    clear();
    floats_ = floats;
    narrow_ = narrow;
    if (narrow)
      narrow_values_ = large_array<std::uint16_t>(floats);
    else
      wide_values_ = large_array<float>(floats);
  }
  void clear() {
    floats_ = 0;
    wide_values_.reset();
    narrow_values_.reset();
    lender_.reset();
  }
  // Every one of `blocks` is as in the model.
  void borrow(SharedModel model, std::span<const Block> blocks) {
    lender_ = std::move(model);
    blocks_ = blocks;
    borrowed_.assign(blocks.size(), 1);
  }
  // Gives the model back once no block is borrowed from it any more; while no block changes.
  void settle_loan() {
    if (lender_ && std::ranges::find(borrowed_, 1) == borrowed_.end()) lender_.reset();
  }
  // It has not changed since borrow().
  [[nodiscard]] bool is_borrowed(const Block& block) const {
    return lender_ && borrowed_[place_of(block)] != 0;
  }
  [[nodiscard]] std::size_t floats() const { return floats_; }
  [[nodiscard]] bool is_narrow() const { return narrow_; }

  using Copy = std::unique_ptr<float[]>;

  // A block to be looked at; in bf16 a copy.
  class Look {
   public:
    Look(const Replica& replica, const Block& block) {
      if (!replica.narrow_) {
        values_ = replica.is_borrowed(block) ? block.of(*replica.lender_) : replica.wide_of(block);
        return;
      }
      values_ = replica.copy(block, copy_);
    }
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    operator std::span<const float>() const { return values_; }  // NOLINT: stands for them

   private:
    Copy copy_;
    std::span<const float> values_;
  };

  // A block of a replica in bf16 as it lies there; a copy while it is borrowed.
  class NarrowLook {
   public:
    NarrowLook(const Replica& replica, const Block& block) {
      if (!replica.is_borrowed(block)) {
        values_ = replica.narrow_of(block);
        return;
      }
      copy_ = std::make_unique_for_overwrite<std::uint16_t[]>(block.size);
      const std::span<std::uint16_t> copied(copy_.get(), block.size);
      kernels().narrow(copied, block.of(*replica.lender_));
      values_ = copied;
    }
    NarrowLook(const NarrowLook&) = delete;
    NarrowLook& operator=(const NarrowLook&) = delete;
    operator std::span<const std::uint16_t>() const { return values_; }  // NOLINT: stands for them

   private:
    std::unique_ptr<std::uint16_t[]> copy_;
    std::span<const std::uint16_t> values_;
  };

  // A block to be changed; in bf16 rounded and kept when the object goes. Nobody else looks at the
  // block meanwhile.
  class Change {
   public:
    Change(Replica& replica, const Block& block) : replica_(replica), block_(block) {
      if (!replica.narrow_) {
        if (replica.is_borrowed(block)) replica.put(block, block.of(*replica.lender_));
        values_ = replica.wide_of(block);
        return;
      }
      values_ = replica.copy(block, copy_);
      replica.own(block);
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
    Copy copy_;
    std::span<float> values_;
  };

  void put(const Block& block, std::span<const float> values) {
    own(block);
    narrow_ ? kernels().narrow(narrow_of(block), values)
            : void(std::copy(values.begin(), values.end(), wide_of(block).begin()));
  }

  // As they would be kept.
  void round(std::span<float> values) const {
    if (narrow_) kernels().round(values);
  }
  // Of a replica in bf16: the block, to be changed.
  [[nodiscard]] std::span<std::uint16_t> change_narrow(const Block& block) {
    if (is_borrowed(block)) put(block, block.of(*lender_));
    return narrow_of(block);
  }

 private:
  [[nodiscard]] std::size_t place_of(const Block& block) const {
    return static_cast<std::size_t>(&block - blocks_.data());
  }
  void own(const Block& block) {
    if (lender_) borrowed_[place_of(block)] = 0;
  }
  // Of a block in bf16; in `copy`.
  std::span<float> copy(const Block& block, Copy& copy) const {
    copy = std::make_unique_for_overwrite<float[]>(block.size);
    const std::span<float> out(copy.get(), block.size);
    if (is_borrowed(block)) {
      std::ranges::copy(block.of(*lender_), out.begin());
      round(out);
    } else {
      kernels().widen(out, narrow_of(block));
    }
    return out;
  }

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
  SharedModel lender_;  // null: no block is borrowed
  std::span<const Block> blocks_;
  // Of each block; bytes, since several blocks may change at once.
  std::vector<std::uint8_t> borrowed_;
};

}  // namespace gossipd
