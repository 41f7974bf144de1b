// Any text as the line of a cluster's key: an error that does not show the secret, or a key that is
// written back unchanged.
#include <cstdint>

#include "net/peer/cluster_key.h"

using namespace gossipd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto key = parse_cluster_key(std::string(reinterpret_cast<const char*>(data), size));
  if (!key) {
    GOSSIPD_ASSERT(key.error().code == "key-format" && !key.error().text.empty());
    return 0;
  }
  const auto again = parse_cluster_key(format_cluster_key(*key));
  GOSSIPD_ASSERT(again && *again == *key);
  return 0;
}
