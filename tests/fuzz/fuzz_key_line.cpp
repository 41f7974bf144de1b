// Any text as the line of a cluster's key: an error that does not show the secret, or a key that is
// written back unchanged.
#include <cstdint>
#include <string_view>

#include "net/peer/cluster_key.h"

using namespace gossipd;

namespace {

constexpr std::size_t secret_part = 12;  // hex digits in a row

// Whether `said` has so many hex digits in a row that stand in `line`.
bool shows_part_of(std::string_view line, std::string_view said) {
  for (std::size_t at = 0; at + secret_part <= said.size(); ++at) {
    const std::string_view part = said.substr(at, secret_part);
    const bool is_hex = part.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (is_hex && line.find(part) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string line(reinterpret_cast<const char*>(data), size);
  const auto key = parse_cluster_key(line);
  if (!key) {
    GOSSIPD_ASSERT(key.error().code == "key-format" && !key.error().text.empty());
    GOSSIPD_ASSERT(!shows_part_of(line, key.error().text));
    return 0;
  }
  const auto again = parse_cluster_key(format_cluster_key(*key));
  GOSSIPD_ASSERT(again && *again == *key);
  return 0;
}
