#include "models/data/batch_source.h"

namespace gossipd {

BatchSource::BatchSource(std::shared_ptr<const DataSet> set, DataOrder order, int loader_threads)
    : set_(std::move(set)) {
  if (loader_threads > 0)
    prefetcher_ = std::make_unique<Prefetcher>(set_, std::move(order), loader_threads);
  else
    order_ = std::move(order);
}

void BatchSource::restrict_to(BucketSet buckets) {
  if (prefetcher_) return prefetcher_->restrict_to(std::move(buckets));
  order_->restrict_to(std::move(buckets));
}

Samples BatchSource::fill(Samples position, std::size_t samples, const Batch& batch) {
  if (prefetcher_) return prefetcher_->take(position, samples, batch);
  visits_.resize(samples);
  const Samples next = order_->take(position, visits_);
  for (std::size_t i = 0; i < samples; ++i) {
    const Variation variation = order_->variation(visits_[i].position);
    set_->write(visits_[i].sample, &variation, batch, i);
  }
  return next;
}

}  // namespace gossipd
