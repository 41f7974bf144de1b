// tests/sim/scale_cluster.h - many members without models, to measure membership.
//
// Durations are virtual; the default protocol period (membership.tick, membership.ping) is one
// second, so seconds are periods.
#pragma once

#include "tests/sim/virtual_cluster.h"

namespace gossipd::sim {

class ScaleCluster : private Watcher {
 public:
  struct Traffic {
    double mean = 0, most = 0;  // bytes/s that a node sends
  };
  struct Overlay {
    std::size_t links_min = 0, links_max = 0;
    double links_mean = 0;
    bool connected = false;
  };

  // Members join through earlier ones, fifty per second.
  explicit ScaleCluster(std::size_t members, std::size_t known_max = members_max);

  void run_for(Duration length) { cluster_.run_for(length); }
  // The time it took, or `limit`.
  Duration until_all_know(std::size_t members, Duration limit);
  Traffic traffic_during(Duration length);
  [[nodiscard]] Overlay overlay() const;
  // Of all samples trained on, as the members count them.
  struct Counted {
    double known = 0;              // mean share
    double estimate_off_most = 0;  // share, either way
  };
  [[nodiscard]] Counted counted();
  // age in seconds of what members know of each other's samples
  [[nodiscard]] double figures_age_mean();
  Duration join_one();              // until all know it
  void crash(std::size_t members);  // at once, silently
  Duration crash_one();             // by power loss; until all consider it failed
  // Repeatedly freezes a new random half of the members for 1 to 3 s.
  void saturate(Duration length);
  // claimed of live members
  [[nodiscard]] std::size_t false_failures() const { return false_failures_; }
  [[nodiscard]] VirtualCluster& cluster() { return cluster_; }

 private:
  void sending(std::size_t from, std::size_t to, SessionId, Lane, const Bytes&) override;
  void logged(std::size_t node, const std::string& text) override;
  NodeOptions options(std::size_t seed) const;
  Duration until(const std::function<bool()>& condition, Duration limit);
  [[nodiscard]] bool lives(std::size_t i) const { return cluster_.alive(i); }

  std::size_t known_max_;
  VirtualCluster cluster_;
  Random random_{1};
  std::vector<std::uint64_t> sent_;
  std::size_t false_failures_ = 0;
};

}  // namespace gossipd::sim
