#include "models/data/pixel_set.h"

#include <algorithm>

#include "core/base/random.h"

namespace gossipd {

namespace {

double for_channel(const std::vector<double>& values, std::size_t channel) {
  return values.size() == 1 ? values[0] : values[channel];
}

}  // namespace

PixelWriter::PixelWriter(const DataSpec& data)
    : channels_(static_cast<std::size_t>(data.shape.at(0))),
      rows_(static_cast<std::size_t>(data.shape.at(1))),
      columns_(static_cast<std::size_t>(data.shape.at(2))),
      random_crop_(data.random_crop),
      random_flip_(data.random_flip),
      normalised_(channels_) {
  for (std::size_t c = 0; c < channels_; ++c)
    for (std::size_t i = 0; i < 256; ++i)
      normalised_[c][i] =
          static_cast<float>((static_cast<double>(i) / 255.0 - for_channel(data.mean, c)) /
                             for_channel(data.deviation, c));
}

void PixelWriter::write(const std::uint8_t* image, const Variation* variation,
                        std::span<float> out) const {
  GOSSIPD_ASSERT(out.size() == image_bytes());
  if (variation != nullptr && (random_crop_ > 0 || random_flip_)) {
    Random random(variation->visit);
    const auto side = static_cast<std::uint64_t>(2 * random_crop_ + 1);
    const std::int64_t down = static_cast<std::int64_t>(random.below(side)) - random_crop_;
    const std::int64_t right = static_cast<std::int64_t>(random.below(side)) - random_crop_;
    return write_shifted(image, down, right, random_flip_ && (random.next() >> 63) != 0, out);
  }
  float* to = out.data();
  for (const std::array<float, 256>& table : normalised_)
    for (std::size_t p = 0; p < rows_ * columns_; ++p) *to++ = table[*image++];
}

// Row y and column x of the result are row y + down and column x + right of the image, from the
// other side when flipped.
void PixelWriter::write_shifted(const std::uint8_t* image, std::int64_t down, std::int64_t right,
                                bool flip, std::span<float> out) const {
  const auto rows = static_cast<std::int64_t>(rows_), columns = static_cast<std::int64_t>(columns_);
  const std::int64_t first = std::clamp<std::int64_t>(-right, 0, columns),
                     end = std::clamp<std::int64_t>(columns - right, 0, columns);
  float* to = out.data();
  for (std::size_t c = 0; c < channels_; ++c, image += rows_ * columns_) {
    const std::array<float, 256>& table = normalised_[c];
    for (std::int64_t y = 0; y < rows; ++y, to += columns) {
      const std::int64_t row = y + down;
      if (row < 0 || row >= rows || first >= end) {
        std::fill_n(to, columns, table[0]);
        continue;
      }
      const std::uint8_t* from = image + row * columns;
      std::fill(to, to + first, table[0]);
      for (std::int64_t x = first; x < end; ++x) to[x] = table[from[x + right]];
      std::fill(to + end, to + columns, table[0]);
      if (flip) std::reverse(to, to + columns);
    }
  }
}

PixelSet::PixelSet(const DataSpec& data, SampleSet samples)
    : DataSet(data), samples_(std::move(samples)), writer_(data) {
  GOSSIPD_ASSERT(samples_.count > 0 && samples_.sample_bytes == writer_.image_bytes());
}

void PixelSet::write(std::size_t index, const Variation* variation, const Batch& batch,
                     std::size_t at) const {
  writer_.write(samples_.images.data() + index * samples_.sample_bytes, variation,
                place<float>(batch.inputs, at, samples_.sample_bytes));
  place<std::int64_t>(batch.targets, at, 1)[0] = samples_.labels[index];
}

}  // namespace gossipd
