// models/data/pixel_set.h - images as bytes, in memory: normalised by table and augmented on their
// way into a batch.
//
// Bytes are a quarter of floats. An image is channels × rows × columns bytes, as tensors have it.
#pragma once

#include <array>

#include "models/data/data_set.h"

namespace gossipd {

// One image's bytes → floats.
class PixelWriter {
 public:
  explicit PixelWriter(const DataSpec&);
  [[nodiscard]] std::size_t image_bytes() const { return channels_ * rows_ * columns_; }
  // (pixel / 255 - mean) / deviation. With `variation` cut and flipped as the job says; pixels
  // beyond the border are zeros before they are normalised. `image` and `out` have image_bytes()
  // elements.
  void write(const std::uint8_t* image, const Variation* variation, std::span<float> out) const;

 private:
  void write_shifted(const std::uint8_t* image, std::int64_t down, std::int64_t right, bool flip,
                     std::span<float> out) const;

  std::size_t channels_, rows_, columns_;
  std::int64_t random_crop_;
  bool random_flip_;
  std::vector<std::array<float, 256>> normalised_;  // by channel
};

// What the readers of pixel files return. Labels are below the number of classes, at most 256.
struct SampleSet {
  std::size_t count = 0;
  std::size_t sample_bytes = 0;
  std::vector<std::uint8_t> images;  // count × sample_bytes, in file order
  std::vector<std::uint8_t> labels;
};

class PixelSet : public DataSet {
 public:
  PixelSet(const DataSpec&, SampleSet samples);
  [[nodiscard]] std::size_t count() const override { return samples_.count; }
  void write(std::size_t index, const Variation*, const Batch&, std::size_t at) const override;
  [[nodiscard]] std::optional<std::int64_t> label(std::size_t index) const override {
    return samples_.labels[index];
  }

 private:
  const SampleSet samples_;
  const PixelWriter writer_;
};

}  // namespace gossipd
