// core/membership/claims.h - which claims in peers' records are believed.
//
// Stands between the wire and the directory: a claim that cannot be is refused (plausibility.h),
// the samples in one that can be are lowered to what counts (sample_credit.h). Says what was
// refused, in sum. The directory is never asked to hold what this has refused. Pure; core strand
// only.
#pragma once

#include "core/membership/directory.h"
#include "core/membership/plausibility.h"
#include "core/membership/sample_credit.h"

namespace gossipd {

class Claims {
 public:
  Claims(const SampleCredit::Start& start, std::uint64_t budget_revision)
      : ticked_(start.now),
        self_(start.self),
        credit_(start),
        budget_(budget_revision, start.newcomer, start.now) {}

  // False: not to be believed. Else `claim` holds what is.
  [[nodiscard]] bool admit(MemberRecord& claim, const Directory& directory, NodeId said_by);
  [[nodiscard]] bool admit(MemberStats& claim, const Directory& directory, NodeId said_by);
  [[nodiscard]] bool admit(const Suspicion& claim, const Directory& directory, NodeId said_by);
  [[nodiscard]] bool admit(const Budget& claim, NodeId said_by, Instant now);

  [[nodiscard]] bool believes(const Budget& claim, Instant now) const {
    return budget_.is_plausible(claim, now);
  }
  // This budget is in force now; `decided_here`: by an operator or this node.
  void adopt(const Budget& budget, bool decided_here) {
    budget_.adopt(budget.revision, decided_here);
  }
  // This node trains from now on.
  void end_trust();
  // Time has passed; `own_rate`: samples/s of this node when it last trained, 0: never yet. Returns
  // the members of whose claims more counts by now.
  [[nodiscard]] std::vector<MemberStats> on_tick(const Directory& directory, double own_rate,
                                                 Instant now);
  // A life of this node that was claimed beyond its own, and may be refuted now.
  [[nodiscard]] std::optional<std::uint64_t> take_leap(const Directory& directory, Instant now);
  // No member is believed to train faster.
  [[nodiscard]] double rate_max() const;
  static constexpr double newcomers_max = 256, newcomers_per_s = 16;
  [[nodiscard]] std::uint64_t refused() const { return doubts_.total(); }
  [[nodiscard]] std::optional<std::string> summary(Instant now) { return doubts_.summary(now); }

 private:
  void lower_to_credit(NodeId id, Samples& claimed, const Directory& directory, NodeId said_by);
  [[nodiscard]] bool leaps(std::uint64_t incarnation, const Directory& directory) const;

  // Members that others may still make known here, that this node has not met: refilled as time
  // passes, so that no peer fills the directory with members that it invents.
  double newcomers_ = newcomers_max;
  Instant ticked_;
  NodeId self_;
  std::uint64_t leap_ = 0;  // the furthest claim that waits
  Instant next_leap_{};
  SampleCredit credit_;
  BudgetBound budget_;
  DoubtCounts doubts_;
};

// What a member does typically, by the speeds that are told: the lower median of those that are
// known, this node's own among them, so that no single member decides it
// while anybody trains: where all the others are one that has finished, its word is all there is.
// 0: too few are known.
[[nodiscard]] double typical_rate(const Directory& directory, NodeId self, double own_rate);

}  // namespace gossipd
