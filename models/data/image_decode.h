// models/data/image_decode.h - JPEG and PNG files as pixels of one size, by libjpeg-turbo, libpng
// and stb's resizer.
//
// Colour becomes grey and grey colour as asked for; PNG's transparency is laid on black. JPEGs that
// are much larger than wanted are decoded at a fraction of their size. Dimensions are checked
// before anything is allocated for them. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/types.h"
#include "models/job/data_spec.h"

namespace gossipd {

inline constexpr std::int64_t image_side_max = 32768;
inline constexpr std::int64_t image_pixels_max = 1 << 26;

struct ImageSize {
  std::int64_t channels = 3;  // 1: grey, 3: red, green, blue
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  // crop: the largest middle part of the right proportions
  DataSpec::Fit fit = DataSpec::Fit::crop;
};

// channels × rows × columns bytes. `origin` is what messages call the file. Code "bad-data".
[[nodiscard]] Result<std::vector<std::uint8_t>> decode_image(std::span<const std::byte> file,
                                                             const std::string& origin,
                                                             const ImageSize&);

}  // namespace gossipd
