// Any bytes as CBOR that is walked before parsing: what passes, the parser accepts, and it is
// within the bounds.
#include <nlohmann/json.hpp>

#include "core/base/result.h"
#include "core/wire/cbor_bounds.h"

using namespace gossipd;
using nlohmann::json;

namespace {

constexpr CborBounds bounds{.depth_max = 4, .items_max = 16384, .text_bytes_max = 60 * 1024};

std::size_t items = 0;

void check(const json& value, std::size_t depth) {
  ++items;
  if (value.is_string())
    GOSSIPD_ASSERT(value.get_ref<const std::string&>().size() <= bounds.text_bytes_max);
  if (value.is_structured()) GOSSIPD_ASSERT(depth < bounds.depth_max);
  for (const json& inner : value)
    if (value.is_structured()) check(inner, depth + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (beyond(bounds, std::as_bytes(std::span(data, size)))) return 0;
  items = 0;
  check(json::from_cbor(data, data + size), 0);
  GOSSIPD_ASSERT(items <= bounds.items_max);
  return 0;
}
