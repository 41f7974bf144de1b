// Key files: what is taken in is written out again as the same keyring; everything else is an error
// with a reason.
#include <cstdint>

#include "core/base/result.h"
#include "net/peer/keyring.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto ring = parse_keyring(std::string(reinterpret_cast<const char*>(data), size));
  if (!ring) {
    GOSSIPD_ASSERT(ring.error().code == "key-format" && !ring.error().text.empty());
    return 0;
  }
  GOSSIPD_ASSERT(!ring->keys().empty() && ring->keys().size() <= keyring_keys_max &&
                 ring->retired().size() <= keyring_retired_max);
  const auto again = parse_keyring(format_keyring(*ring));
  GOSSIPD_ASSERT(again && *again == *ring);
  return 0;
}
