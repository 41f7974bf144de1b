#include "models/data/data_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/random.h"
#include "core/base/result.h"

namespace gossipd {

namespace {

void shuffle(std::span<std::uint32_t> values, std::uint64_t seed) {
  Random random(seed);
  for (std::size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[random.below(left)]);
}

// One generator's output seeds the next, so neighbouring seeds, shards and epochs are unrelated.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  return Random(Random(a).next() ^ b).next();
}

}  // namespace

DataOrder::DataOrder(std::uint64_t seed, std::size_t set_samples, Shard shard)
    : seed_(seed), shard_(shard) {
  GOSSIPD_ASSERT(shard.index < shard.count && set_samples >= shard.count &&
                 set_samples <= 0xffffffffu);
  std::vector<std::uint32_t> all(set_samples);
  std::iota(all.begin(), all.end(), 0u);
  shuffle(all, mixed(seed, 0x64617461));
  members_.reserve((set_samples - shard.index + shard.count - 1) / shard.count);
  for (std::size_t i = shard.index; i < set_samples; i += shard.count) members_.push_back(all[i]);
  order_.resize(members_.size());
  shuffle_for(0);
}

DataOrder::DataOrder(std::uint64_t seed, std::vector<std::uint32_t> members, Shard shard)
    : seed_(seed), shard_(shard), members_(std::move(members)) {
  GOSSIPD_ASSERT(shard.index < shard.count && !members_.empty());
  order_.resize(members_.size());
  shuffle_for(0);
}

void DataOrder::shuffle_for(std::uint64_t epoch) {
  std::iota(order_.begin(), order_.end(), 0u);
  shuffle(order_, mixed(shard_seed(), epoch));
  epoch_ = epoch;
}

std::uint64_t DataOrder::shard_seed() const {
  const std::uint64_t seed = mixed(seed_, (std::uint64_t{shard_.count} << 32) | shard_.index);
  return shard_.walker == 0 ? seed : mixed(seed, shard_.walker);
}

Variation DataOrder::variation(Samples position) const {
  return {mixed(shard_seed() ^ 0x7669736974ull, position),
          mixed(seed_ ^ 0x65706f6368ull, position / members_.size())};
}

void DataOrder::restrict_to(BucketSet buckets) {
  GOSSIPD_ASSERT(!buckets || (buckets->size() <= members_.size() &&
                              std::find(buckets->begin(), buckets->end(), true) != buckets->end()));
  buckets_ = std::move(buckets);
}

Samples DataOrder::take(Samples position, std::span<Visit> out) {
  std::uint64_t epoch = position / order_.size();
  std::size_t at = position % order_.size();
  for (std::size_t taken = 0; taken < out.size(); ++position) {
    if (epoch != epoch_) shuffle_for(epoch);
    const std::uint32_t member = order_[at];
    if (++at == order_.size()) at = 0, ++epoch;
    if (!buckets_ || (*buckets_)[member % buckets_->size()])
      out[taken++] = {members_[member], position};
  }
  return position;
}

}  // namespace gossipd
