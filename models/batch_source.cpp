#include "models/batch_source.h"

#include <algorithm>

namespace gossipd {

std::array<float, 256> normalisation(const DataSpec& data) {
  std::array<float, 256> table{};
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<float>((static_cast<double>(i) / 255.0 - data.mean) / data.deviation);
  return table;
}

BatchSource::BatchSource(const DataSpec& data, const SampleSet& whole_set, DataOrder order)
    : order_(std::move(order)), sample_bytes_(whole_set.sample_bytes), normalised_(normalisation(data)) {
  images_.reserve(order_.shard_samples() * sample_bytes_);
  labels_.reserve(order_.shard_samples());
  for (const std::uint32_t member : order_.members()) {
    const auto image = whole_set.images.begin() + static_cast<std::ptrdiff_t>(member * sample_bytes_);
    images_.insert(images_.end(), image, image + static_cast<std::ptrdiff_t>(sample_bytes_));
    labels_.push_back(whole_set.labels[member]);
  }
}

void BatchSource::fill(Samples position, std::span<float> images, std::span<std::int64_t> labels) {
  GOSSIPD_ASSERT(images.size() == labels.size() * sample_bytes_);
  picked_.resize(labels.size());
  order_.take(position, picked_);
  float* out = images.data();
  for (std::size_t i = 0; i < picked_.size(); ++i, out += sample_bytes_) {
    const std::uint8_t* pixels = images_.data() + picked_[i] * sample_bytes_;
    for (std::size_t p = 0; p < sample_bytes_; ++p) out[p] = normalised_[pixels[p]];
    labels[i] = labels_[picked_[i]];
  }
}

}  // namespace gossipd
