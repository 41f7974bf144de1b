// Host memory of the exchange, counted allocation by allocation: (2 + 2·links)·4·P bytes, with
// replicas in bf16 (2 + links)·4·P; 4·P more for a drift, three turns per link, and a constant.
#include <algorithm>
#include <cstdio>

#include "tests/counted_memory.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

struct Case {
  std::size_t floats;
  int links;
  int drift;
  ReplicaFormat replicas;
};

void check_memory(const Case& c) {
  const auto [floats, links, drift, replicas] = c;
  const Schema schema = schema_of({floats - 1'000'000, 900'000, 100'000});
  const bool in_bf16 = replicas == ReplicaFormat::bf16 ||
                       (replicas == ReplicaFormat::automatic && floats >= 32'000'000);
  const std::int64_t model_bytes = static_cast<std::int64_t>(schema.floats()) * 4;
  const std::int64_t window = 24ll << 20;  // per node: encoded blocks on their way
  // Per link, turns in int4: one that is kept until it is answered, two for the outer momentum.
  const std::int64_t turns = 3 * (model_bytes / 8 * 11 / 10);
  const std::int64_t before = counted::live.load();
  counted::peak = before;
  VirtualCluster cluster(schema, [](std::size_t node, std::span<float> x, Step step) {
    x[(step * 7919 + node) % x.size()] += 0.5f;
  });
  cluster.check_no_replicas();
  const int nodes = links + 1;  // all linked to all
  for (int i = 0; i < nodes; ++i) {
    NodeOptions options;
    if (i > 0)
      options.seeds = {0};
    else
      options.start.assign(schema.floats(), 0.25f);
    options.exchange.codec = Codec{CodecId::int4, 0};
    options.exchange.threshold = 1e-9;
    options.exchange.replicas = replicas;
    options.exchange.correction.future_position = drift;
    options.exchange.period_steps = 1;
    options.step_time = 200ms;
    cluster.add(options);
  }
  const auto exchanged = [&] {
    for (int i = 0; i < nodes; ++i) {
      const NodeView view = cluster.view(static_cast<std::size_t>(i));
      if (view.links.size() != static_cast<std::size_t>(links)) return false;
      for (const LinkView& link : view.links)
        if (link.counters.turns_spoken < 2 || link.counters.turns_heard < 2) return false;
    }
    return true;
  };
  REQUIRE(cluster.run_until(exchanged, 120s));
  // The test holds each trainer's parameters and, for the founder, its start; they are not the
  // exchange's.
  const std::int64_t used = counted::peak.load() - before - (nodes + 1) * model_bytes;
  const std::int64_t formula = nodes * (2 + drift + (in_bf16 ? 1 : 2) * links) * model_bytes;
  std::printf(
      "P = %zu M, %d links, %d drift, %s: peak %.1f MB per node, formula %.1f MB, above it %.1f "
      "MB\n",
      floats / 1'000'000, links, drift, in_bf16 ? "bf16" : "fp32", used / 1e6 / nodes,
      formula / 1e6 / nodes, static_cast<double>(used - formula) / 1e6 / nodes);
  CHECK(used <= formula + nodes * (window + links * turns));
  CHECK(used > formula / 2);
}

}  // namespace

TEST_CASE(
    "the exchange stays within (2 + 2 links) 4 P bytes and a constant per node, with a drift 4 P "
    "more, in bf16, the default of large models, with half of the links' share") {
  check_memory({25'000'000, 1, 1, ReplicaFormat::automatic});
  check_memory({25'000'000, 2, 0, ReplicaFormat::fp32});
  check_memory({25'000'000, 2, 0, ReplicaFormat::bf16});
  check_memory({33'000'000, 1, 0, ReplicaFormat::automatic});
}
