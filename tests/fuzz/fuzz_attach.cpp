// Any bytes as packets between a trainer and its daemon, and as a job's list of segments: an error
// with a text, or fields that are written back as a packet which says the same.
#include <cstdint>
#include <cstring>

#include "models/external/packets.h"
#include "models/external/segment_list.h"

using namespace gossipd;

namespace {

constexpr std::uint64_t floats = 1000;

// NaN has many forms; what is written has one of them, which is stable from then on.
void from_trainer(std::span<const std::byte> packet) {
  const auto fields = attach::decode_from_trainer(packet);
  if (!fields) {
    GOSSIPD_ASSERT(!fields.error().code.empty() && !fields.error().text.empty());
    return;
  }
  const Bytes once = attach::encode(*fields);
  GOSSIPD_ASSERT(once.size() == packet.size());
  const auto again = attach::decode_from_trainer(once);
  GOSSIPD_ASSERT(again && attach::encode(*again) == once);
  if (const auto* list = std::get_if<attach::Segments>(&*fields)) {
    const auto schema = schema_of(list->segments);
    if (!schema) return;
    const auto same = parse_segment_list(format_segment_list(schema->segments()));
    GOSSIPD_ASSERT(same && same->hash() == schema->hash() && !first_difference(*same, *schema));
  }
}

void from_daemon(std::span<const std::byte> packet) {
  const auto fields = attach::decode_from_daemon(packet, floats);
  if (!fields) return;
  const auto again = attach::decode_from_daemon(attach::encode(*fields), floats);
  GOSSIPD_ASSERT(again);
  if (const auto* go = std::get_if<attach::Go>(&*fields))
    for (const attach::Range& range : go->ranges)
      GOSSIPD_ASSERT(range.first + range.floats <= floats);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto packet = std::as_bytes(std::span(data, size));
  from_trainer(packet);
  from_daemon(packet);
  const auto list = parse_segment_list(std::string(reinterpret_cast<const char*>(data), size));
  if (list) {
    const auto again = parse_segment_list(format_segment_list(list->segments()));
    GOSSIPD_ASSERT(again && again->hash() == list->hash());
  }
  return 0;
}
