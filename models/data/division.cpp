#include "models/data/division.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "core/base/random.h"
#include "core/base/result.h"

namespace gossipd {

namespace {

// Halfway between two levels lies no whole batch, so that all machines round alike.
int level_of(std::uint32_t batch) {
  return static_cast<int>(std::lround(4 * std::log2(static_cast<double>(batch))));
}

}  // namespace

std::size_t buckets_of(std::size_t set_samples) {
  return std::min(set_samples, division_buckets_max);
}

Samples samples_in(const std::vector<bool>& buckets, std::size_t set_samples) {
  Samples samples = 0;
  for (std::size_t b = 0; b < buckets.size(); ++b)
    if (buckets[b])
      samples += set_samples / buckets.size() + (b < set_samples % buckets.size() ? 1 : 0);
  return samples;
}

BucketOwners::BucketOwners(std::size_t buckets, std::uint32_t job_batch)
    : job_batch_(job_batch), owners_(buckets) {
  GOSSIPD_ASSERT(buckets > 0 && job_batch > 0);
}

// Two machines whose logarithms differ in the last bit see another owner only where two times
// differ by no more, once in about 10¹⁵ claims.
BucketOwners::Claim BucketOwners::claim(const Member& member, std::size_t bucket) {
  const std::uint64_t drawn = Random(Random(raw(member.id)).next() ^ bucket).next();
  const double uniform = static_cast<double>((drawn >> 11) + 1) * 0x1.0p-53;  // in (0, 1]
  return {-std::log(uniform) * std::exp2(-0.25 * member.level), member.id};
}

void BucketOwners::divide(std::vector<DivisionMember> members) {
  std::vector<Member> now, kept, come;
  for (const DivisionMember& m : members)
    now.push_back({m.id, level_of(m.batch > 0 ? m.batch : job_batch_)});
  const auto by_id = [](const Member& a, const Member& b) { return a.id < b.id; };
  std::sort(now.begin(), now.end(), by_id);
  GOSSIPD_ASSERT(std::adjacent_find(now.begin(), now.end(), [](const Member& a, const Member& b) {
                   return a.id == b.id;
                 }) == now.end());
  // A member with another weight counts as another claimant.
  const auto by_id_and_level = [](const Member& a, const Member& b) {
    return std::tie(a.id, a.level) < std::tie(b.id, b.level);
  };
  std::set_intersection(now.begin(), now.end(), members_.begin(), members_.end(),
                        std::back_inserter(kept), by_id_and_level);
  std::set_difference(now.begin(), now.end(), kept.begin(), kept.end(), std::back_inserter(come),
                      by_id_and_level);
  for (std::size_t b = 0; b < owners_.size(); ++b) {
    Claim& first = owners_[b];
    const bool stays = std::binary_search(kept.begin(), kept.end(), Member{first.id, 0}, by_id);
    if (!stays) first = {HUGE_VAL, NodeId{}};
    for (const Member& member : stays ? come : now) {
      const Claim other = claim(member, b);
      if (std::tie(other.time, other.id) < std::tie(first.time, first.id)) first = other;
    }
  }
  members_ = std::move(now);
}

std::vector<bool> BucketOwners::owned_by(NodeId id) const {
  std::vector<bool> owned(owners_.size());
  for (std::size_t b = 0; b < owners_.size(); ++b) owned[b] = id != NodeId{} && owners_[b].id == id;
  return owned;
}

}  // namespace gossipd
