// core/membership/directory.h - everything this node knows about the cluster's members.
//
// Of a record, two kinds of things spread in two ways (core/membership/README.md says why):
//   news   state, address, phase and budget of a member: rare, sent at once over every link, in
//          the order of change
//   stats  samples, step, speed, loss: change all the time, sent a few at a time, member after
//          member (a Sweep for each link)
// A claim with a higher incarnation replaces what is known; within one incarnation the later state
// wins (alive < failed < left < forgotten), the higher `news` brings newer news and the higher
// `tick` newer stats, in any order. `samples` is merged by maximum whatever else is said, so the
// cluster's total never counts twice and never falls. A suspicion names its holder; the suspect
// refutes it with a higher incarnation.
// In a cluster with more members than there is room for, the directory keeps those heard of last
// and the sample counts of the others, and hands no newcomer on. Pure; core strand.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "core/base/random.h"
#include "core/membership/member.h"

namespace gossipd {

class Directory {
 public:
  struct Counted {
    Samples samples = 0;
    Instant at{};
  };
  struct Entry {
    MemberRecord record;  // state: alive, failed, left or forgotten, as it travels
    // a member, perhaps this node, suspects it, and it has not refuted that
    bool suspect = false;
    bool accused_here = false;  // this node has its own evidence
    bool lonely = false;        // failed by the verdict of this node while it had no link
    bool doubted = false;       // such a verdict was taken back, and no word of it has come since
    bool met = false;           // a session with it was established since this node started
    bool met_before = false;    // only in an earlier run of this node
    Instant suspected{};        // last sign of life, if accused here; else when the suspicion came
    std::set<NodeId> accusers;  // at most accusers_max, and this node
    Instant refreshed{};        // when its stats last advanced here, or a byte came from it
    Instant said{};             // when the member published these stats, as far as is known
    std::uint64_t news = 0;     // our own counter at its last news …
    std::uint64_t stats = 0;    // … and at its last change of any kind
    // where the last change came from, if that peer knows no less: it is not sent back there
    SessionId source{};
    SessionId news_source{};            // the same for the last news
    std::optional<double> pace;         // samples/s between its words, smoothed; none: of one word
    std::optional<Counted> paced_from;  // the word that the next pace is measured from
    [[nodiscard]] bool was_ever_met() const { return met || met_before; }
    // What a restart is to know of it. A verdict of a time without links is void once there is one.
    [[nodiscard]] MemberRecord to_keep() const {
      MemberRecord kept = record;
      if (lonely && kept.state == MemberState::failed) kept.state = MemberState::alive;
      return kept;
    }
  };
  enum class Outcome : std::uint8_t {
    unchanged,
    updated,
    joined,
    revived,
    failed,
    left,
    // this node is held to have failed, or a claim about it goes beyond what it has published: it
    // must refute with a higher incarnation; the claim may also hold more of its samples
    accused,
    recovered,  // a claim holds more of this node's own samples than it knew
  };
  // How far the stats have been sent over one link.
  struct Sweep {
    std::uint64_t told = 0;  // all changes up to here are sent
    std::uint64_t next = 0;  // what `told` becomes when the sweep under way is through
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
  // This node has trained on no more than `samples`, and nobody has heard of more.
  void lose_own(Samples samples);
  Outcome merge(const MemberRecord& claim, Instant now, SessionId source = {});
  // Stats count in full for a known member and incarnation; else only the samples of a known
  // member.
  Outcome merge(const MemberStats& claim, Instant now, SessionId source);
  // A session with it is about to be established: its record gets a place, whoever has to go.
  void expect(NodeId id) { expected_ = id; }
  // The life that is known of it counts no more: any that is said next replaces it.
  void drop_life(NodeId id);
  // A session with it was established in an earlier run of this node.
  void recall_met(NodeId id);
  // A byte arrived from it, on an established session.
  void heard_from(NodeId id, Instant now);
  // True if that changed its entry.
  bool set_failed(NodeId id, bool lonely, Instant now);
  bool set_forgotten(NodeId id, Instant now);
  // This node has heard nothing from it since `last_heard`. True: it did not hold that before.
  bool accuse(NodeId id, Instant last_heard);
  // A suspicion that another member holds. True: it is new, and worth handing on.
  bool merge(const Suspicion& suspicion, Instant now);
  // Members whose suspicion has lasted. An accuser waits fail_after from the last sign of life, and
  // less the more accusers there are (at least half of what is left after suspect_after); a node
  // that has only heard of the suspicion waits twice fail_after.
  [[nodiscard]] std::vector<NodeId> overdue(const Timeouts& timeouts, Instant now) const;
  // This node stood still for so long until `now`, which is no silence of the others.
  void forgive(Duration gap, Instant now);
  // Verdicts that this node came to without any link are void when it gets one.
  void doubt_lonely_verdicts(Instant now);

  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(NodeId id) const;
  [[nodiscard]] const MemberRecord& self() const;
  [[nodiscard]] Samples others_samples() const { return others_samples_; }
  struct Estimator {
    double own_rate = 0;    // samples/s of this node
    Samples own = 0;        // trained on by this node
    double rate_max = 1e9;  // samples/s: no member is believed to be faster
  };
  // An estimate of what the members that train have trained on since their last stats: each at the
  // speed that it publishes or at the pace of its words, whichever is less, and no more than has
  // been counted of it or of this node. The cluster's samples plus this are an estimate, no lower
  // bound.
  [[nodiscard]] Samples samples_since(Instant now, const Estimator& by) const;
  // Living members without this node; suspects included.
  [[nodiscard]] std::size_t alive_others() const { return alive_others_; }
  [[nodiscard]] std::size_t failed() const { return failed_; }
  [[nodiscard]] std::uint64_t news() const { return news_; }
  // Records with news after `since`, at most `most`, oldest news first, without those that came
  // from `to`; moves `since` on.
  [[nodiscard]] std::vector<MemberRecord> news_since(std::uint64_t& since, SessionId to,
                                                     std::size_t most) const;
  // The next stats for a link; none if all are sent. Looks at a bounded number of members.
  [[nodiscard]] std::vector<MemberStats> next_stats(Sweep& sweep, SessionId to, std::size_t most,
                                                    Instant now) const;
  // A hash of the news for each bucket of ids, more buckets for more members; and the records
  // that differ from a peer's digest.
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
  bool make_room(bool for_met, Instant now);
  Outcome merge_self(const MemberStats& claim, MemberState state, std::uint64_t news);
  void absolve(Entry& entry);
  void account(const MemberRecord& record, bool adds);
  [[nodiscard]] std::vector<std::uint64_t> digest_in(std::size_t buckets) const;
  [[nodiscard]] static std::size_t buckets_for(std::size_t members);

  NodeId self_;
  NodeId expected_{};
  std::size_t most_;
  std::map<NodeId, Samples> evicted_;  // sample counts of members whose records had to go
  std::map<NodeId, Entry> entries_;
  std::map<std::uint64_t, NodeId> by_news_;
  std::set<NodeId> suspects_;
  std::uint64_t news_ = 0, stats_ = 0;
  Samples others_samples_ = 0;
  std::size_t alive_others_ = 0, failed_ = 0;
};

}  // namespace gossipd
