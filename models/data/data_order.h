// models/data/data_order.h - which sample a shard trains on at which position: a pure function.
//
// One permutation of the whole set, drawn from the job's seed, is dealt out to the shards like
// cards: shard i of n gets every n-th, starting with the i-th, so shards are alike in distribution
// and share nothing. Each shard walks its samples in a new order every epoch, drawn from (seed,
// shard, epoch), and nodes that share a shard are told apart by a walker: each then visits all of
// it in an order of its own. Position is all there is to save: a resumed run continues with the
// same samples.
//
// Nodes that divide a set among themselves (division.h) all walk the one shard 0 of 1 in the same
// order, each visits the samples of its buckets and passes over the others': at every moment each
// sample of a pass is one node's, and whoever inherits a bucket goes on about where its former
// owner was.
#pragma once

#include "core/base/types.h"
#include "models/data/data_set.h"
#include "models/data/division.h"

namespace gossipd {

class DataOrder {
 public:
  struct Shard {
    std::uint32_t index = 0;
    std::uint32_t count = 1;
    std::uint64_t walker = 0;
  };
  struct Visit {
    std::uint32_t sample = 0;  // index into the whole set
    Samples position = 0;
  };
  // `set_samples` below 2^32 and at least shard.count; shard.index < shard.count.
  DataOrder(std::uint64_t seed, std::size_t set_samples, Shard shard);
  // A shard chosen by others: these samples, not none; `shard` only tells its
  // epochs' orders from other shards'.
  DataOrder(std::uint64_t seed, std::vector<std::uint32_t> members, Shard shard);

  [[nodiscard]] std::size_t shard_samples() const { return members_.size(); }
  // Only samples of these buckets are visited from now on, not none of them; null: all. Member k is
  // in bucket k % buckets.
  void restrict_to(BucketSet buckets);
  // Fills `out` with the visits from `position` on: each position's, but for those that are passed
  // over; runs on into the next epoch. Returns the position after the last one. The order of the
  // epoch is kept between calls.
  Samples take(Samples position, std::span<Visit> out);
  [[nodiscard]] Variation variation(Samples position) const;

 private:
  void shuffle_for(std::uint64_t epoch);
  [[nodiscard]] std::uint64_t shard_seed() const;

  std::uint64_t seed_;
  Shard shard_;
  std::vector<std::uint32_t> members_;
  std::vector<std::uint32_t> order_;  // of members_, in `epoch_`
  std::uint64_t epoch_ = 0;
  BucketSet buckets_;
};

}  // namespace gossipd
