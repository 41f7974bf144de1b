// membership-scale: the cost and speed of membership, for N virtual members of the real core.
//
// Members step a toy trainer once a second, so their stats keep changing, and exchange no models:
// all bytes counted are membership's (bytes of messages at the sender, without TLS and TCP
// headers). Deterministic.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/sim/scale_cluster.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t known_by_each = 64;  // in an overlay measured by itself

nlohmann::json to_json(const ScaleCluster::Overlay& overlay) {
  return {{"links_min", overlay.links_min},
          {"links_mean", overlay.links_mean},
          {"links_max", overlay.links_max},
          {"connected", overlay.connected}};
}

// Only links, of members that know a few others each, before and after a tenth of them vanishes.
nlohmann::json measure_overlay(std::size_t members) {
  ScaleCluster cluster(members, known_by_each);
  cluster.run_for(20s);
  nlohmann::json result{{"members", members},
                        {"known_by_each", known_by_each},
                        {"overlay", to_json(cluster.overlay())}};
  cluster.crash(members / 10);
  cluster.run_for(40s);
  result["overlay_without_a_tenth"] = to_json(cluster.overlay());
  return result;
}

nlohmann::json measure(std::size_t members, bool saturated) {
  ScaleCluster cluster(members);
  nlohmann::json result{{"members", members}};
  result["formed_s"] = seconds(cluster.until_all_know(members, 3600s));
  cluster.run_for(60s);
  const ScaleCluster::Traffic traffic = cluster.traffic_during(120s);
  result["bytes_per_s_mean"] = traffic.mean;
  result["bytes_per_s_max"] = traffic.most;
  result.update(to_json(cluster.overlay()));
  result["figures_age_s_mean"] = cluster.figures_age_mean();
  const ScaleCluster::Counted counted = cluster.counted();
  result["samples_known_mean"] = counted.known;
  result["samples_estimate_off_most"] = counted.estimate_off_most;
  result["join_periods"] = seconds(cluster.join_one());
  result["crash_periods"] = seconds(cluster.crash_one());
  if (saturated) {
    result["false_failures_before"] = cluster.false_failures();
    cluster.saturate(120s);
  }
  result["false_failures"] = cluster.false_failures();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "What membership costs and how fast it tells, for N virtual members of the real core; one "
      "JSON line for each N. Periods are of 1 s."};
  std::vector<std::size_t> sizes{16, 64, 256};
  bool saturated = false;
  app.add_option("--members", sizes, "cluster sizes")->delimiter(',')->check(CLI::Range(4, 10'000));
  bool overlay = false;
  app.add_flag("--overlay", overlay,
               "links alone: members that know 64 others each, and what is left when a tenth of "
               "them is gone at once");
  app.add_flag("--saturated", saturated,
               "afterwards, stop half of the members for 1 to 3 s again and again for two minutes");
  CLI11_PARSE(app, argc, argv);
  if (!overlay && *std::max_element(sizes.begin(), sizes.end()) > members_max) {
    std::fprintf(stderr,
                 "membership-scale: a directory holds at most %zu members; with --overlay more can "
                 "be measured\n",
                 members_max);
    return 2;
  }
  for (const std::size_t members : sizes) {
    std::printf("%s\n",
                (overlay ? measure_overlay(members) : measure(members, saturated)).dump().c_str());
    std::fflush(stdout);
  }
}
