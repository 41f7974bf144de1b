// tests/sim/support.h - schemas and models for tests.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/base/random.h"
#include "tests/sim/virtual_cluster.h"

namespace gossipd::sim {

inline Schema schema_of(const std::vector<std::uint64_t>& sizes) {
  std::vector<Segment> segments;
  std::uint64_t offset = 0;
  for (const std::uint64_t size : sizes) {
    segments.push_back(Segment{"s" + std::to_string(segments.size()),
                               {static_cast<std::int64_t>(size)},
                               offset,
                               size,
                               SegmentKind::parameter});
    offset += size;
  }
  auto schema = Schema::build(std::move(segments));
  REQUIRE(schema);
  return *schema;
}

inline std::vector<float> random_model(std::size_t floats, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> model(floats);
  for (float& x : model) x = static_cast<float>(random.uniform() * 2 - 1);
  return model;
}

// A node with its own random start (index 0 founds the cluster, the others join it).
inline NodeOptions with_model(const Schema& schema, std::size_t index) {
  NodeOptions options;
  if (index > 0) options.seeds = {0};
  options.start = random_model(schema.floats(), 100 + index);
  return options;
}

// Every living node, but one.
inline bool all_in(VirtualCluster& cluster, Phase phase, std::optional<std::size_t> but = {}) {
  for (std::size_t i = 0; i < cluster.size(); ++i)
    if (i != but && cluster.alive(i) && cluster.node(i).phase() != phase) return false;
  return true;
}

// Lines of a node's log with these words.
inline std::size_t times_logged(const VirtualCluster& cluster, std::size_t node,
                                const std::string& words) {
  return static_cast<std::size_t>(std::ranges::count_if(
      cluster.log(node),
      [&](const std::string& line) { return line.find(words) != std::string::npos; }));
}

inline bool has_refusal(const NodeView& view, const std::string& code, bool by_us) {
  for (const Refusal& refusal : view.refusals)
    if (refusal.reason.code == code && refusal.by_us == by_us) return true;
  return false;
}

// Nodes that the first one reaches over open links, itself among them.
inline std::size_t reached_from_first(const VirtualCluster& cluster) {
  std::set<NodeId> reached{cluster.id(0)};
  for (bool grows = true; grows;) {
    const std::size_t before = reached.size();
    for (std::size_t i = 0; i < cluster.size(); ++i)
      for (const LinkView& link : cluster.view(i).links) {
        if (link.state != "open") continue;
        if (reached.contains(cluster.id(i))) reached.insert(link.peer);
        if (reached.contains(link.peer)) reached.insert(cluster.id(i));
      }
    grows = reached.size() > before;
  }
  return reached.size();
}

inline const MemberView* member(const NodeView& view, NodeId id) {
  for (const MemberView& item : view.members)
    if (item.record.id == id) return &item;
  return nullptr;
}

}  // namespace gossipd::sim
