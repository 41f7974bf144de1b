// core/membership/plausibility.h - bounds of the claims about members that are believed.
//
// The problem: counters that come from outside only ever grow, so a claim far beyond what any
// member can have reached could never be refuted, and one at the end of its range would wrap. Every
// counter of a record therefore has a bound here; a claim beyond it is refused and counted.
//
// The bounds of an incarnation widen from hearsay to its owner: a node believes less from hearsay
// than the owner may refute, and more from the owner itself. So the owner can always correct a lie
// that was believed. How many samples count is another question (sample_credit.h). Pure; core
// strand only.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "core/membership/member.h"

namespace gossipd {

inline constexpr std::uint64_t counter_max = std::uint64_t{1} << 62;  // of anything that is counted
inline constexpr Samples budget_samples_max = Samples{1} << 60;
// So that the sum over all members that a directory remembers, evicted ones included, cannot wrap.
inline constexpr Samples member_samples_max = Samples{1} << 47;
// How far a claim may be beyond what is known.
inline constexpr std::uint64_t told_incarnation_jump_max = std::uint64_t{1} << 20;
// told of a member that is not known
inline constexpr std::uint64_t first_incarnation_max = std::uint64_t{1} << 40;
// said by a member that is not known
inline constexpr std::uint64_t first_own_word_max = std::uint64_t{1} << 41;
// of this node: whatever a newcomer may believe of it, and the refutations of that which an old
// disk has forgotten
inline constexpr std::uint64_t refuted_first_max = first_incarnation_max + (std::uint64_t{1} << 36);
inline constexpr std::uint64_t refuted_jump_max = std::uint64_t{1} << 22;
// or a liar would drive a node to the end of its range
inline constexpr Duration between_leaps = std::chrono::minutes(1);
// so many leaps may have been missed
inline constexpr std::uint64_t own_word_jump_max = std::uint64_t{1} << 50;
inline constexpr std::uint64_t budget_revision_jump_max = std::uint64_t{1} << 16;
inline constexpr std::uint64_t budget_revisions_per_s = 16;
inline constexpr std::uint64_t first_budget_revision_max = std::uint64_t{1} << 32;

enum class Doubt : std::uint8_t { incarnation, counter, samples, budget, members, count_ };
[[nodiscard]] const char* to_string(Doubt);

enum class Told : std::uint8_t {
  of_another,  // by another member
  of_itself,   // by the member itself
  of_us,       // by another member, about this node
};
// `known`: the incarnation that is known; nothing: the member is not.
[[nodiscard]] bool is_plausible_incarnation(std::uint64_t claimed,
                                            std::optional<std::uint64_t> known, Told told);
// Nothing: the claim can be believed as far as its counters go.
[[nodiscard]] std::optional<Doubt> doubt(const MemberRecord& claim, const MemberRecord* known,
                                         Told told);
[[nodiscard]] std::optional<Doubt> doubt(const MemberStats& claim);

// Which revisions the budget may have reached: a bounded number a second since this process began.
class BudgetBound {
 public:
  // `newcomer`: belongs to no cluster yet, so any revision but an absurd one is news.
  BudgetBound(std::uint64_t revision, bool newcomer, Instant now)
      : base_(revision), newcomer_(newcomer), began_(now) {}
  [[nodiscard]] bool is_plausible(const Budget& claim, Instant now) const;
  // This budget is in force. The count begins at the one that a newcomer hears or an operator
  // decides here.
  void adopt(std::uint64_t revision, bool decided_here) {
    if (newcomer_ || decided_here) base_ = std::max(base_, revision);
  }
  void end_trust() { newcomer_ = false; }
  [[nodiscard]] bool is_newcomer() const { return newcomer_; }

 private:
  std::uint64_t base_;
  bool newcomer_;
  Instant began_;
};

// Counts refused claims by kind and source, for one line in the log once in a while.
class DoubtCounts {
 public:
  void note(Doubt kind, NodeId said_by);
  [[nodiscard]] std::uint64_t total() const { return total_; }
  // Words for the log, when there is something new and the last words are `summary_period` old.
  [[nodiscard]] std::optional<std::string> summary(Instant now);

  static constexpr Duration summary_period = std::chrono::minutes(1);
  static constexpr std::size_t named_max = 8;  // sources in one summary

 private:
  std::array<std::uint64_t, static_cast<std::size_t>(Doubt::count_)> since_{};
  std::map<NodeId, std::uint64_t> sources_;  // at most named_max, since the last summary
  std::uint64_t total_ = 0, told_ = 0;
  std::optional<Instant> last_;
};

}  // namespace gossipd
