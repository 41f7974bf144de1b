// core/membership/directory.h - everything this node knows about the cluster's members.
//
// Records spread by gossip: a claim with a higher incarnation replaces what is known; within one
// incarnation the later state wins (alive < failed < left) and the higher tick brings newer
// figures. `samples` is merged by maximum whatever else is said, so the cluster's total never
// counts twice and never falls. Suspicion is each node's own view and does not travel: silence of
// a record's tick makes a member suspect here, and failed (which does travel) when it lasts.
// The member accused refutes with a higher incarnation. Pure; core strand.
#pragma once

#include <map>

#include "core/membership/member.h"

namespace gossipd {

class Directory {
 public:
  struct Entry {
    MemberRecord record;      // state: alive, failed or left, as it travels
    bool suspect = false;     // our own view
    Instant refreshed{};      // when its tick last advanced here, or a byte came from it
    std::uint64_t change = 0; // our own counter at its last change: what a peer has not seen yet
  };
  enum class Outcome : std::uint8_t {
    unchanged, updated, joined, revived, failed, left,
    accused,     // somebody holds us to have failed: refute
    recovered,   // somebody knows more of our own samples than we do
  };

  explicit Directory(NodeId self) : self_(self) {}

  // Adds or refreshes this node's own record. `incarnation` and `samples` must not fall.
  void set_self(MemberRecord record, Instant now);
  Outcome merge(const MemberRecord& claim, Instant now);
  // A byte arrived from it.
  void heard_from(NodeId id, Instant now);
  // True when that changed what we hold of it.
  bool set_failed(NodeId id, Instant now);
  bool set_suspect(NodeId id, bool suspect);
  // After this node itself stood still: nobody is to be accused of our own silence.
  void forgive(Duration gap);

  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(NodeId id) const;
  [[nodiscard]] const MemberRecord& self() const;
  [[nodiscard]] Samples others_samples() const;
  // Members alive by the last word (suspects included), this node not counted.
  [[nodiscard]] std::size_t alive_others() const;
  [[nodiscard]] std::uint64_t change() const { return change_; }
  // Records changed after `since`, at most records_per_message_max, oldest change first; `since` is moved on.
  [[nodiscard]] std::vector<MemberRecord> changed_since(std::uint64_t& since) const;

 private:
  void touch(Entry& entry) { entry.change = ++change_; }

  NodeId self_;
  std::map<NodeId, Entry> entries_;
  std::uint64_t change_ = 0;
};

}  // namespace gossipd
