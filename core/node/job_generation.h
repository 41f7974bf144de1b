// core/node/job_generation.h - which of a cluster's jobs is the one in force.
//
// The problem: the next job may be started on any member, on two at once, and while others are
// down; all must end with the same one, whatever the order in which they hear of it. And since the
// number comes from outside and only ever grows, one lie must not use up its range.
//
// The answer: each job has the generation after the one that it replaces; the higher one is in
// force, of two alike that with the higher hash. One too far beyond the own is not believed. Pure
// values.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "core/base/types.h"
#include "core/membership/plausibility.h"

namespace gossipd {

struct JobGeneration {
  static constexpr std::uint64_t founding = 1;  // generation of the job of a cluster's founder
  // How many jobs a member may have missed.
  static constexpr std::uint64_t jump_max = std::uint64_t{1} << 16;

  std::uint64_t generation = 0;  // 0: no job is known
  JobHash hash{};

  auto operator<=>(const JobGeneration&) const = default;

  // As a peer says it; a release that knows no next job says no generation.
  [[nodiscard]] static JobGeneration said(std::uint64_t generation, JobHash hash) {
    if (hash == JobHash{}) return {};
    return {generation == 0 ? founding : generation, hash};
  }
  // Of a node that knows no job, any but an absurd one.
  [[nodiscard]] bool believes(const JobGeneration& claim) const {
    if (claim.generation >= counter_max) return false;
    return generation == 0 || claim.generation <= generation ||
           claim.generation - generation <= jump_max;
  }
  // The job that an operator starts here; nothing: it is the one in force already, or the range
  // is used up.
  [[nodiscard]] std::optional<JobGeneration> followed_by(JobHash next) const {
    if (next == hash || generation + 1 >= counter_max) return std::nullopt;
    return JobGeneration{generation + 1, next};
  }
};

}  // namespace gossipd
