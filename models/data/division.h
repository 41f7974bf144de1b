// models/data/division.h - who trains on which part of a set that all nodes hold: an owner for each
// bucket of samples.
//
// Nodes come and go, and nobody is there to deal out samples. So every node works out the same
// answer from what membership tells it anyhow, who is there and with which batch, by weighted
// rendezvous hashing (Thaler and Ravishankar 1998; the weights as in Schindelhauer and Schomaker
// 2005): for each bucket each member draws a time until it claims it, exponential with its weight
// as rate and a function of (member, bucket) alone, and the earliest has it. Hence one owner for
// every bucket; members' parts in proportion to their weights; a newcomer takes from all, a
// leaver's buckets go to all, and no other bucket moves.
//
// The weight is the batch, in quarter octaves: where steps take equally long everywhere, the parts
// are walked at one pace, and a batch that changes by little moves nothing. A first division costs
// 1 ms for 3 members, 240 ms for 1,000, one who comes or goes 0.3 to 1 ms. Pure; one thread.
#pragma once

#include <memory>
#include <vector>

#include "core/membership/division_members.h"

namespace gossipd {

// Many, so that members of equal weight have parts of nearly equal size: their deviation is
// √(members / buckets), 1.4 % for three.
inline constexpr std::size_t division_buckets_max = 16384;

// By bucket: whether it is in. Shared by whoever reads the set; null: every bucket.
using BucketSet = std::shared_ptr<const std::vector<bool>>;

[[nodiscard]] std::size_t buckets_of(std::size_t set_samples);
// How many samples of a set have their place k in its order with k % buckets.size() in `buckets`.
[[nodiscard]] Samples samples_in(const std::vector<bool>& buckets, std::size_t set_samples);

// A node's part.
struct DivisionStatus {
  std::size_t members = 0;  // among which the set is divided; 0: nobody has said
  std::size_t buckets = 0;
  // 0: no member of the division; or more members than buckets, then it trains on all
  std::size_t buckets_owned = 0;
  Samples samples = 0;  // of the set
  Samples samples_owned = 0;
};

class BucketOwners {
 public:
  BucketOwners(std::size_t buckets, std::uint32_t job_batch);

  // These members, each once, in any order. Costs a hash for each bucket of those that went and
  // each newcomer, not for each of all.
  void divide(std::vector<DivisionMember> members);
  [[nodiscard]] std::size_t buckets() const { return owners_.size(); }
  // NodeId{}: nobody is there
  [[nodiscard]] NodeId owner(std::size_t bucket) const { return owners_[bucket].id; }
  [[nodiscard]] std::vector<bool> owned_by(NodeId) const;

 private:
  struct Claim {
    double time = 0;
    NodeId id{};
  };
  struct Member {
    NodeId id{};
    int level = 0;  // of its weight, in quarter octaves
    bool operator==(const Member&) const = default;
  };
  static Claim claim(const Member&, std::size_t bucket);

  std::uint32_t job_batch_;
  std::vector<Member> members_;  // by id
  std::vector<Claim> owners_;    // by bucket
};

}  // namespace gossipd
