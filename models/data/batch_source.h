// models/data/batch_source.h - one shard of a data set, handed out as batches.
//
// Batch by batch a pure function of the position: order and augmentation follow from seed, shard
// (or buckets) and position alone, with loader threads as without. One thread.
#pragma once

#include "models/data/data_order.h"
#include "models/data/data_set.h"
#include "models/data/prefetcher.h"

namespace gossipd {

class BatchSource {
 public:
  // The order's members are samples of `set`. With `loader_threads` the samples to come are made
  // ready in the background.
  BatchSource(std::shared_ptr<const DataSet> set, DataOrder order, int loader_threads = 0);

  [[nodiscard]] std::size_t shard_samples() const { return order().shard_samples(); }
  [[nodiscard]] const DataSet& set() const { return *set_; }
  // Of a set that nodes divide among themselves: as DataOrder::restrict_to(). What is ready of
  // other buckets is dropped.
  void restrict_to(BucketSet buckets);
  // `samples` samples from `position` on; the batch has room for just as many. Returns the position
  // after them. Throws what DataSet::write() throws.
  Samples fill(Samples position, std::size_t samples, const Batch& batch);
  // A seed of this visit's own: another one at every position, and on nodes whose shard or walker
  // is another.
  [[nodiscard]] std::uint64_t visit(Samples position) const {
    return order().variation(position).visit;
  }

 private:
  [[nodiscard]] const DataOrder& order() const {
    return prefetcher_ ? prefetcher_->order() : *order_;
  }

  std::shared_ptr<const DataSet> set_;
  std::optional<DataOrder> order_;  // with loader threads theirs: it has 8 bytes for each sample
  std::vector<DataOrder::Visit> visits_;
  std::unique_ptr<Prefetcher> prefetcher_;  // null without loader threads
};

}  // namespace gossipd
