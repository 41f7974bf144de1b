#include "core/node/job_generation.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

namespace gossipd {

ClusterId JobGeneration::meeting_in(ClusterId founded) const {
  if (generation <= founding) return founded;
  std::array<unsigned char, 24> bytes{};  // big-endian, so that all machines agree
  const std::array<std::uint64_t, 3> numbers = {raw(founded), generation, raw(hash)};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(numbers[i / 8] >> (8 * (7 - i % 8)));
  return ClusterId{XXH3_64bits(bytes.data(), bytes.size()) | 1};  // 0 is no cluster
}

}  // namespace gossipd
