// tests/sim/scale_cluster.h - many members without models, to measure what membership does.
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

  // Every member joins through one that was there before, fifty a second.
  explicit ScaleCluster(std::size_t members, std::size_t known_max = members_max);

  void run_for(Duration length) { cluster_.run_for(length); }
  // How long it took, or `limit`.
  Duration until_all_know(std::size_t members, Duration limit);
  Traffic traffic_during(Duration length);
  [[nodiscard]] Overlay overlay() const;
  // Of all samples trained on, as the members count them.
  struct Counted {
    double known = 0;              // mean share
    double estimate_off_most = 0;  // share, either way
  };
  [[nodiscard]] Counted counted();
  // seconds by which what members know of each other's samples is old
  [[nodiscard]] double figures_age_mean();
  Duration join_one();              // until everybody knows it
  void crash(std::size_t members);  // at once, without a word
  Duration crash_one();             // power is lost: until everybody holds it to have failed
  // Half of the members, drawn anew each time, stand still for 1 to 3 s, again and again.
  void saturate(Duration length);
  // said of members that lived
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
