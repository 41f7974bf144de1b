// Links that are given up for others, so that all members meet in time.
#include <set>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

TEST_CASE(
    "links are given up for others now and then, nobody is suspected for it, and all stay "
    "connected") {
  const Schema schema = schema_of({20});
  for (const std::uint32_t links : {2, 3, 4}) {
    CAPTURE(links);
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < 12; ++i) {
      NodeOptions options = with_model(schema, i);
      options.membership.links = links;
      options.membership.rotate = 20s;
      cluster.add(options);
    }
    cluster.run_for(10s);
    std::set<NodeId> met;
    Instant looked{};
    bool connected = true;
    REQUIRE(cluster.run_until(
        [&] {
          if (cluster.now() - looked >= 1s) {
            looked = cluster.now();
            connected = connected && reached_from_first(cluster) == cluster.size();
          }
          for (const LinkView& link : cluster.view(11).links)
            if (link.state == "open") met.insert(link.peer);
          return met.size() >= 9;
        },
        1200s));
    CHECK(connected);
    for (std::size_t i = 0; i < 12; ++i)
      for (const char* event : {"event=member-suspect", "event=member-failed"})
        CHECK(times_logged(cluster, i, event) == 0);
  }
}
