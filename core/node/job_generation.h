// core/node/job_generation.h - which of a cluster's jobs is the one in force.
//
// The problem: the next job may be started on any member, on two at once, and while others are
// down; all must end with the same one, whatever the order in which they hear of it. Until then
// members of two jobs meet, and no figure of the one may count for the other. And since the number
// comes from outside and only ever grows, one lie must not use up its range.
//
// The answer: each job has the generation after the one that it replaces; the higher one is in
// force, of two alike that with the higher hash. One too far beyond the own is not believed. Each
// has a name of the cluster of its own, made of the cluster that was founded, generation and hash:
// hellos carry it, so members of two jobs are to each other as members of two clusters. Pure.
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

  std::uint64_t generation = founding;
  JobHash hash{};  // 0: of this generation, but the job is not known yet

  auto operator<=>(const JobGeneration&) const = default;

  [[nodiscard]] bool believes(std::uint64_t claimed) const {
    return claimed < counter_max && (claimed <= generation || claimed - generation <= jump_max);
  }
  // The job that an operator starts here; nothing: the range is used up.
  [[nodiscard]] std::optional<JobGeneration> followed_by(JobHash next) const {
    if (generation >= counter_max - 1) return std::nullopt;
    return JobGeneration{generation + 1, next};
  }
  // The name under which members of this job meet; `founded` of the founding one.
  [[nodiscard]] ClusterId meeting_in(ClusterId founded) const;
};

}  // namespace gossipd
