#include "models/batch_source.h"

namespace gossipd {

BatchSource::BatchSource(std::shared_ptr<const DataSet> set, DataOrder order, int loader_threads)
    : set_(std::move(set)), order_(std::move(order)), prefetcher_(loader_threads > 0 ? std::make_unique<Prefetcher>(set_, order_, loader_threads) : nullptr) {}

void BatchSource::fill(Samples position, std::size_t samples, const Batch& batch) {
  if (prefetcher_) return prefetcher_->take(position, samples, batch);
  picked_.resize(samples);
  order_.take(position, picked_);
  for (std::size_t i = 0; i < samples; ++i) {
    const Variation variation = order_.variation(position + i);
    set_->write(order_.members()[picked_[i]], &variation, batch, i);
  }
}

}  // namespace gossipd
