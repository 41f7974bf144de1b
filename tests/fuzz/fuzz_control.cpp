// Any bytes as a control message: refused, or a message within its named maxima that reads the same
// after it was written again.
#include "core/wire/control.h"

#include <cmath>

using namespace gossipd;

namespace {

void check_bounds(const Control& control) {
  if (const auto* hello = std::get_if<Hello>(&control))
    GOSSIPD_ASSERT(hello->id != NodeId{} && hello->name.size() <= name_bytes_max &&
                   hello->address.host.size() <= 255);
  if (const auto* members = std::get_if<Members>(&control)) {
    GOSSIPD_ASSERT(members->records.size() <= records_per_message_max);
    for (const MemberRecord& record : members->records)
      GOSSIPD_ASSERT(record.id != NodeId{} && record.name.size() <= name_bytes_max &&
                     raw(record.state) <= raw(MemberState::forgotten) &&
                     raw(record.phase) <= raw(Phase::waiting_for_trainer) &&
                     raw(record.reachability) <= raw(Reachability::address_silent));
    GOSSIPD_ASSERT(members->stats.size() <= stats_per_message_max &&
                   members->suspicions.size() <= suspicions_per_message_max);
    for (const MemberStats& stats : members->stats)
      GOSSIPD_ASSERT(stats.id != NodeId{} && std::isfinite(stats.samples_per_second) &&
                     std::isfinite(stats.loss) && std::isfinite(stats.consensus_distance));
    for (const Suspicion& suspicion : members->suspicions)
      GOSSIPD_ASSERT(suspicion.id != NodeId{} && suspicion.by != NodeId{});
  }
  if (const auto* digest = std::get_if<Digest>(&control))
    GOSSIPD_ASSERT(!digest->buckets.empty() && digest->buckets.size() <= digest_buckets_max);
  if (const auto* resync = std::get_if<Resync>(&control))
    GOSSIPD_ASSERT(resync->blocks.size() <= resync_blocks_max);
  if (const auto* offer = std::get_if<JobOffer>(&control)) GOSSIPD_ASSERT(!offer->document.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto control = decode_control(std::as_bytes(std::span(data, size)));
  if (!control) return 0;
  check_bounds(*control);
  // Written by us it may be longer than it came (every key is spelled out), never a different
  // message.
  const Bytes written = encode_control(*control);
  if (written.size() > control_bytes_max) return 0;
  const auto again = decode_control(written);
  GOSSIPD_ASSERT(again && again->index() == control->index() && encode_control(*again) == written);
  return 0;
}
