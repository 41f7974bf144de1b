// core/node/dial_budget.h - how often this node dials at most.
//
// The problem: a member's record says where that member is. A lying member can name thousands of
// addresses of third parties, and every node of the cluster would knock there. So dials are paid
// from two buckets that fill with time: one for all dials, one for each host (all its ports), which
// is refilled when a member answers there. An honest cluster stays far below both.
//
// Pure; the node asks before it dials.
#pragma once

#include <map>
#include <string>

#include "core/base/types.h"

namespace gossipd {

class DialBudget {
 public:
  struct Limits {
    double per_second = 10, burst = 64;           // dials in all
    double host_per_second = 2, host_burst = 24;  // to one host, without a member answering
    std::size_t hosts_max = 4096;  // remembered; one whose bucket is full need not be
  };

  DialBudget() = default;
  explicit DialBudget(const Limits& limits) : limits_(limits) {}

  [[nodiscard]] bool admits(const Endpoint& endpoint, Instant now) const;
  void spend(const Endpoint& endpoint, Instant now);
  void answered(const Endpoint& endpoint);  // a member of the cluster is there

 private:
  struct Bucket {
    double spent = 0;  // at `at`; falls with time, never below 0
    Instant at{};
  };
  [[nodiscard]] static double spent(const Bucket& bucket, double per_second, Instant now);
  void forget_full(Instant now);

  Limits limits_;
  Bucket all_;
  std::map<std::string, Bucket> hosts_;  // at most hosts_max
};

}  // namespace gossipd
