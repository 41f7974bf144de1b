// core/membership/sample_credit.h - how many of the samples that a member claims count.
//
// The problem: learning rate and budget follow the sum of all members' published samples, so a
// liar could end everybody's job. A claim counts as far as a member can have trained since this
// node last credited it: ratio * typical rate * time, where the typical rate is a median that one
// member cannot move. The rest stays outstanding and is credited as time passes, so an honest
// member that is faster is counted late, not never.
// A newcomer has no past to judge by: until it trains itself it believes all claims about others.
// A member's own claim bounds those of others about it: beyond what it can have trained on since,
// they count for nothing. What arrives right after this node stood still may have been said before.
// Members that no session has confirmed can be invented in any number. Together they have one head
// start and one pool of rate, no larger than that of the confirmed members. After `proof` such a
// member counts on its own.
// Claims about this node itself never exceed what it may have trained on between the state on its
// disk and its start. Pure; core strand only.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

class SampleCredit {
 public:
  struct Start {
    NodeId self{};
    double speed_ratio_max = 16;  // of a member's speed to the typical one
    // between the last run's end and now: the others trained meanwhile
    Duration down_for{};
    Duration unsure_for{};  // before that: time of which this node may not know what it trained
    bool newcomer = false;
    Instant now{};
  };
  explicit SampleCredit(const Start& start);

  // `typical_rate`: samples/s of a typical member; 0: not known yet. `own`: this node's own
  // samples.
  void advance(double typical_rate, Samples own, Instant now);
  // From now on this node trains: what is claimed is judged as soon as a typical rate is known.
  void end_trust() { ends_trust_ = true; }
  struct Claim {
    NodeId id{};
    Samples claimed = 0;
    Samples known = 0;      // what has counted until now
    bool met = true;        // the member was known before this claim
    bool own_word = false;  // the member itself says so
  };
  // What counts of it, at least `known`.
  [[nodiscard]] Samples credit(const Claim& claim);
  // Members of whose outstanding claims more counts by now, and how much in all.
  [[nodiscard]] std::vector<std::pair<NodeId, Samples>> due();
  // No member is believed to be faster; 0: no bound yet.
  [[nodiscard]] double rate_max() const { return ratio_ * typical_rate_; }

  static constexpr std::size_t accounts_max = 4096;
  // how long a member that is known from others only shares the pool
  static constexpr Duration proof = std::chrono::minutes(10);
  // the most unused time that is kept
  static constexpr Duration reserve = std::chrono::minutes(10);
  // how long a member's own claim may have been under way
  static constexpr Duration own_word_slack = std::chrono::seconds(30);

 private:
  struct Account {
    double spent = 0;  // of potential_: its difference to that is what may be credited now
    Samples credited = 0;
    Samples claimed = 0;  // beyond `credited`: outstanding
    std::optional<Samples> own_word;
    Instant own_word_at{};
    bool hearsay = false;  // met by the word of others while this node trained
    Instant since{};
  };
  Samples spend(NodeId id, Account& account);
  [[nodiscard]] bool is_hearsay(const Account& account) const {
    return account.hearsay && !account.own_word && now_ - account.since < proof;
  }
  [[nodiscard]] double reserve_samples() const { return rate_max() * seconds(reserve); }
  using Accounts = std::map<NodeId, Account>;
  Account* account_of(NodeId id, bool met);
  bool make_room();
  Accounts::iterator longest_silent();

  NodeId self_;
  double ratio_;
  bool trusting_;
  bool ends_trust_ = false;
  Duration down_for_{}, unsure_for_{};
  double typical_rate_ = 0;
  double potential_ = 0;   // what one member can have trained since this process began
  double head_start_ = 0;  // of a member that is met late: it may be as old as this node
  double hearsay_potential_ = 0, hearsay_spent_ = 0;  // of all members known by hearsay together
  std::size_t spoken_ = 0;                            // members that have spoken here themselves
  Instant began_{}, now_{}, advanced_{};
  // until then a message may have waited in this node's socket since
  Instant waited_until_{}, waited_since_{};
  Accounts accounts_;
};

}  // namespace gossipd
