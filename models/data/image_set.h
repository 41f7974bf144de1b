// models/data/image_set.h - a folder of JPEG and PNG files, decoded when they are first needed.
//
// Decoded and resized images are kept as bytes until a bound is reached, then the others are
// decoded at every visit: an epoch visits each image once, so whatever is kept saves as much as any
// other choice. The class of an image is that of its folder, or the word that its file name begins
// with ("cat.123.jpg").
#pragma once

#include <atomic>
#include <mutex>

#include "models/data/data_set.h"
#include "models/data/image_decode.h"
#include "models/data/image_files.h"
#include "models/data/pixel_set.h"

namespace gossipd {

class ImageSet : public DataSet {
 public:
  // All images below DIRECTORY/`folder`; looks at the first bytes of each. Without class_names the
  // folders to train on say which class is which. Codes "no-data", "bad-data" (an empty class, a
  // name that fits no class, a file that is neither). Adds what else lies there.
  static Result<std::shared_ptr<const DataSet>> open(const DataSpec&, const std::string& folder,
                                                     const LoadOptions&, LeftOut&);

  [[nodiscard]] std::size_t count() const override { return files_.size(); }
  void write(std::size_t index, const Variation*, const Batch&, std::size_t at) const override;
  [[nodiscard]] std::optional<std::int64_t> label(std::size_t index) const override {
    return files_[index].label;
  }

 private:
  struct File {
    std::string path;
    std::int64_t label;
  };
  using Pixels = std::shared_ptr<const std::vector<std::uint8_t>>;

  ImageSet(const DataSpec&, std::vector<File> files, std::uint64_t cache_bytes);
  static Result<std::vector<File>> list(const DataSpec&, const std::string& directory,
                                        const std::string& folder, LeftOut&);
  [[nodiscard]] Pixels pixels_of(std::size_t index) const;

  const std::vector<File> files_;
  const ImageSize size_;
  const PixelWriter writer_;
  mutable std::mutex mutex_;  // guards kept_ and its room
  mutable std::vector<Pixels> kept_;
  mutable std::uint64_t room_;  // images that may still be kept
};

}  // namespace gossipd
