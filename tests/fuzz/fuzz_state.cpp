// Any bytes as a node's state on its disk: refused with a reason, or a state that is written and
// read the same again. After an even first byte the rest is only the state and gets a valid
// checksum.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "core/base/nesting.h"
#include "daemon/disk/state_store.h"

using namespace gossipd;
using nlohmann::json;

namespace {

constexpr std::int64_t now_s = 1'800'000'000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0 && !json_nests_deeper(text)) {
    const json body = json::parse(text, nullptr, false);
    if (body.is_discarded()) return 0;
    const std::string written = body.dump(-1, ' ', false, json::error_handler_t::replace);
    text = R"({"format":1,"checksum":")" + to_hex(XXH3_64bits(written.data(), written.size())) +
           R"(","state":)" + written + "}";
  }
  const auto state = parse_node_state(text, now_s);
  if (!state) {
    GOSSIPD_ASSERT(state.error().code == "bad-state" && !state.error().text.empty());
    return 0;
  }
  GOSSIPD_ASSERT(state->members.size() <= members_max);
  const std::string again = format_node_state(*state, now_s);
  const auto same = parse_node_state(again, now_s);
  GOSSIPD_ASSERT(same && format_node_state(*same, now_s) == again);
  return 0;
}
