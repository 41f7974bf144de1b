// core/membership/member.h - what a cluster knows about one of its nodes.
//
// A record belongs to its node: only the node itself raises `incarnation`, `tick` and `news` and
// reports its progress; others may say that they suspect it or hold it to have failed, and it
// refutes that with a higher incarnation. `samples` only ever grows, whatever else a record says,
// so a restart cannot count twice. Plain values; core strand only.
#pragma once

#include "core/base/types.h"

namespace gossipd {

// In this order a claim of the same incarnation overrides the one before it. A forgotten member is
// kept for its samples alone.
enum class MemberState : std::uint8_t { alive, suspect, failed, left, forgotten };
[[nodiscard]] const char* to_string(MemberState);

// What a node is doing. Only `training` makes optimiser steps.
enum class Phase : std::uint8_t {
  joining,           // no cluster yet: seeds are asked, for ever
  waiting_for_data,  // knows the job, but not where its data lies
  preparing,         // the job is known; data and model are being built
  syncing,           // a neighbour's model is being downloaded
  training,
  paused,               // by the operator: exchanges, but makes no steps
  finishing,            // the budget is spent: exchanging until the models agree
  finished,             // final model reached
  leaving,              // publishing what is unpublished
  left,                 // by the operator, durably; until `join`
  broken,               // own model is not finite and nothing to restore it from has come yet
  waiting_for_trainer,  // as paused: no process is there that makes the steps of an external job
};
inline constexpr std::size_t phase_count = static_cast<std::size_t>(Phase::waiting_for_trainer) + 1;
[[nodiscard]] const char* to_string(Phase);

// Whether others find a node at the address that it advertises (reach.h).
enum class Reachability : std::uint8_t {
  unknown,         // nobody has tried, or a release that does not say
  reachable,       // a member found it there
  dials_out,       // nobody who tried did, and the address was nobody's choice
  address_silent,  // nobody who tried did, though an operator named the address
};
[[nodiscard]] const char* to_string(Reachability);
// What to do about it, in words; empty where nothing is wrong.
[[nodiscard]] std::string reachability_hint(Reachability, const Endpoint& advertised);

inline constexpr std::size_t name_bytes_max = 64;
inline constexpr std::size_t version_bytes_max = 24;
inline constexpr std::size_t device_bytes_max = 48;
inline constexpr std::size_t members_max = 1024;
inline constexpr std::size_t digest_buckets_max = 128;
// older ones are told, and made up for, as if they were so old
inline constexpr double stats_age_max_s = 1200;

// What an operator or an early stop made of the job's budget. The later word wins, of two at once
// the larger budget: every node ends with the same, whatever the order in which they hear of it.
struct Budget {
  std::uint64_t revision = 0;  // 0: the job's own
  Samples samples = 0;
  auto operator<=>(const Budget&) const = default;
};

struct MemberRecord {
  NodeId id{};
  std::string name;
  Endpoint address;
  std::uint64_t incarnation = 0;  // raised at every start and to refute a suspicion
  MemberState state = MemberState::alive;
  std::uint64_t tick = 0;  // raised with every change; compares within one incarnation
  std::uint64_t news = 0;  // the tick of the last change that everybody is to know at once
  Phase phase = Phase::joining;
  Samples samples = 0;  // trained on by this node, ever; merged by maximum
  Step step = 0;
  double samples_per_second = 0;
  std::uint32_t batch = 0;
  double loss = 0;
  double consensus_distance =
      1;          // largest relative distance to a neighbour's published model; 1 = not known
  Budget budget;  // as this node knows it
  // Of releases that say so; else empty, unknown and negative.
  std::string version, device;
  Reachability reachability = Reachability::unknown;
  double accuracy = -1;  // on held-out data, at the last evaluation
};

// The part of a record that changes all the time.
struct MemberStats {
  NodeId id{};
  std::uint64_t incarnation = 0;
  std::uint64_t tick = 0;
  Samples samples = 0;
  Step step = 0;
  double samples_per_second = 0;
  std::uint32_t batch = 0;
  double loss = 0;
  double consensus_distance = 1;
  double accuracy = -1;
  double age_seconds = 0;  // when this was said, since the member itself said it
};
[[nodiscard]] MemberStats stats_of(const MemberRecord&);

// `by` has heard nothing from `id` for too long.
struct Suspicion {
  NodeId id{};
  std::uint64_t incarnation = 0;
  NodeId by{};
};

}  // namespace gossipd
