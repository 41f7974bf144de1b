// core/membership/directory.h - everything this node knows about the cluster's members.
//
// Of a record, two kinds of things spread in two ways (core/membership/README.md says why):
//   news     who lives, where, in which phase, for which budget: rare, told at once over every
//            link, in the order of change
//   stats  samples, step, speed, loss: change all the time, told a few at a time, member after
//            member (a Sweep for each link)
// A claim with a higher incarnation replaces what is known; within one incarnation the later state
// wins (alive < failed < left < forgotten), the higher `news` brings newer news and the higher
// `tick` newer stats, in any order. `samples` is merged by maximum whatever else is said, so the
// cluster's total never counts twice and never falls. A suspicion names who holds it; the member
// refutes it with a higher incarnation.
// In a cluster of more members than it has room for it keeps those of which it has heard last, and
// hands no newcomer on: their counts stay. Pure; core strand.
#pragma once

#include <map>
#include <set>

#include "core/base/random.h"
#include "core/membership/member.h"

namespace gossipd {

class Directory {
 public:
  struct Entry {
    MemberRecord record;  // state: alive, failed, left or forgotten, as it travels
    // somebody, perhaps this node, has said so and it has not been refuted
    bool suspect = false;
    bool accused_here = false;  // this node has its own evidence
    bool lonely = false;        // held to have failed by a node that had nobody to ask
    Instant suspected{};        // last sign of life, if accused here; else when the suspicion came
    std::set<NodeId> accusers;  // at most accusers_max
    Instant refreshed{};        // when its stats last advanced here, or a byte came from it
    Instant said{};             // when the member itself said these stats, as far as is known
    std::uint64_t news = 0;     // our own counter at its last news …
    std::uint64_t stats = 0;    // … and at its last change of any kind
    // that the last change came from, if it knows no less than this node: it is not told there
    // again
    SessionId source{};
    SessionId news_source{};  // … and the last news
  };
  enum class Outcome : std::uint8_t {
    unchanged,
    updated,
    joined,
    revived,
    failed,
    left,
    // somebody holds us to have failed, or knows what we have not said: refute, above what it says;
    // may know more of our samples, too
    accused,
    recovered,  // somebody knows more of our own samples than we do
  };
  // How far one link has been told the stats.
  struct Sweep {
    std::uint64_t told = 0;  // all changes up to here
    std::uint64_t next = 0;  // … up to here when the sweep under way is through
    NodeId at{};             // last member looked at
    bool under_way = false;
  };
  struct Timeouts {
    Duration suspect_after{}, fail_after{};
  };

  explicit Directory(NodeId self, std::size_t most = members_max) : self_(self), most_(most) {}

  // Adds or refreshes this node's own record; `tick` and `news` are set here. `incarnation` and
  // `samples` must not fall.
  void set_self(MemberRecord record, bool is_news, Instant now);
  Outcome merge(const MemberRecord& claim, Instant now, SessionId source = {});
  // Figures of a member and an incarnation that are known; of others only what adds to the samples
  // of a known one.
  Outcome merge(const MemberStats& claim, Instant now, SessionId source);
  // A byte arrived from it.
  void heard_from(NodeId id, Instant now);
  // True when that changed what we hold of it.
  bool set_failed(NodeId id, bool lonely, Instant now);
  bool set_forgotten(NodeId id, Instant now);
  // This node has heard nothing from it since `last_heard`. True: it did not hold that before.
  bool accuse(NodeId id, Instant last_heard);
  // Somebody says so. True: it was not known, and is worth handing on.
  bool merge(const Suspicion& suspicion, Instant now);
  // Suspicions that have lasted: an accuser waits fail_after from the last sign of life, less the
  // more accusers there are (at least half of what is left after suspect_after); who has only heard
  // of it waits twice fail_after.
  [[nodiscard]] std::vector<NodeId> overdue(const Timeouts& timeouts, Instant now) const;
  // After this node itself stood still: nobody is to be accused of our own silence.
  void forgive(Duration gap);
  // What a node alone has decided about others is void when it meets one of them.
  void doubt_lonely_verdicts(Instant now);

  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(NodeId id) const;
  [[nodiscard]] const MemberRecord& self() const;
  [[nodiscard]] Samples others_samples() const { return others_samples_; }
  // What the others have probably trained on since they said so, at the speeds they said: of
  // members that train and whose stats are older than `stale`; nobody is believed to be faster
  // than `rate_max`. A lower bound of the cluster's samples plus this is no bound.
  [[nodiscard]] Samples samples_since(Duration stale, Instant now, double rate_max = 1e9) const;
  // Members alive by the last word (suspects included), this node not counted.
  [[nodiscard]] std::size_t alive_others() const { return alive_others_; }
  [[nodiscard]] std::size_t failed() const { return failed_; }
  [[nodiscard]] std::uint64_t news() const { return news_; }
  // Records with news after `since`, at most `most`, oldest news first, but for those from `to`
  // itself; `since` is moved on.
  [[nodiscard]] std::vector<MemberRecord> news_since(std::uint64_t& since, SessionId to,
                                                     std::size_t most) const;
  // The next stats for a link; none: it knows all. Looks at a bounded number of members.
  [[nodiscard]] std::vector<MemberStats> next_stats(Sweep& sweep, SessionId to, std::size_t most,
                                                    Instant now) const;
  // A hash of the news for each of as many buckets of ids as the size asks for, and which records
  // differ from somebody's.
  [[nodiscard]] std::vector<std::uint64_t> digest() const {
    return digest_in(buckets_for(entries_.size()));
  }
  [[nodiscard]] std::vector<MemberRecord> differing(const std::vector<std::uint64_t>& theirs) const;
  // At most `most` of the living, drawn at random.
  [[nodiscard]] std::vector<MemberRecord> sample(std::size_t most, Random& random) const;

  static constexpr std::size_t accusers_max = 4;

 private:
  Entry& touch(Entry& entry, bool is_news, SessionId source = {});
  Outcome add(const MemberRecord& claim, Instant now, SessionId source);
  bool make_room(Instant now);
  Outcome merge_self(const MemberStats& claim, MemberState state, std::uint64_t news);
  void absolve(Entry& entry);
  void account(const MemberRecord& record, bool adds);
  [[nodiscard]] std::vector<std::uint64_t> digest_in(std::size_t buckets) const;
  [[nodiscard]] static std::size_t buckets_for(std::size_t members);

  NodeId self_;
  std::size_t most_;
  std::map<NodeId, Samples> evicted_;  // the counts of members whose records had to go
  std::map<NodeId, Entry> entries_;
  std::map<std::uint64_t, NodeId> by_news_;
  std::set<NodeId> suspects_;
  std::uint64_t news_ = 0, stats_ = 0;
  Samples others_samples_ = 0;
  std::size_t alive_others_ = 0, failed_ = 0;
};

}  // namespace gossipd
