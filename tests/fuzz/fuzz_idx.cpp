// Any bytes as an IDX file, plain or gzipped: an array of the promised size, or an error.
#include "models/data/idx.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto array = parse_idx(std::as_bytes(std::span(data, size)), "fuzz", 1 << 20);
  if (!array) {
    GOSSIPD_ASSERT(array.error().text.starts_with("fuzz: "));
    return 0;
  }
  std::size_t values = 1;
  for (const std::uint32_t extent : array->shape) values *= extent;
  GOSSIPD_ASSERT(values == array->values.size() && values <= 1 << 20);
  return 0;
}
