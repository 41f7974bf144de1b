// Any bytes as a JPEG or PNG file, by the first byte's choice of colours and fit: pixels of the
// wanted size, or an error.
#include "models/data/image_decode.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ImageSize wanted{data[0] & 1 ? 1 : 3, 12, 20,
                         data[0] & 2 ? DataSpec::Fit::stretch : DataSpec::Fit::crop};
  const auto pixels = decode_image(std::as_bytes(std::span(data + 1, size - 1)), "fuzz", wanted);
  if (!pixels)
    GOSSIPD_ASSERT(pixels.error().code == "bad-data" && pixels.error().text.starts_with("fuzz: "));
  else
    GOSSIPD_ASSERT(pixels->size() == static_cast<std::size_t>(wanted.channels) * 12 * 20);
  return 0;
}
