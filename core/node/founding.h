// core/node/founding.h - whether a node that is to found its cluster may do so.
//
// The problem: a fixed set of nodes (a StatefulSet, an array of Slurm) starts with one command
// line, and exactly one of them, the first, is to found the cluster. If the first loses its disk it
// must not found a second cluster beside the one that the others are still members of, even where
// none of them runs at the moment; so silence permits nothing, however long it lasts.
//
// The answer: the first asks all its seeds. It founds once each of them has said, in a handshake,
// that it belongs to no cluster; one that belongs to a cluster takes the node in as any joiner. No
// time is looked at. Seeds that lead back to the node itself are not asked. Two seeds that are
// answered by one node would be one witness for two, so each needs a node of its own. A node that
// would found one as well is no witness: where two have number 0 by mistake, neither founds. Pure;
// core strand.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/types.h"

namespace gossipd {

class Founding {
 public:
  // `cluster` 0: this node founds nothing by itself.
  Founding(ClusterId cluster, const std::vector<Endpoint>& seeds);

  [[nodiscard]] bool is_wanted() const { return cluster_ != ClusterId{}; }
  [[nodiscard]] ClusterId cluster() const { return cluster_; }
  // A node said at this seed's address that it belongs to no cluster. True: that is news.
  bool on_free(const Endpoint& seed, NodeId node);
  // The node there would found one itself.
  void on_rival(const Endpoint& seed);
  // The address leads back to this node.
  void on_self(const Endpoint& seed);
  // These are asked from now on; what those among them have said stands.
  void set_seeds(const std::vector<Endpoint>& seeds);
  // Every seed is free, each by a node of its own.
  [[nodiscard]] bool is_due() const;
  // "box2:7610 and box3:7610 to say …"; what an operator reads while it is not due.
  [[nodiscard]] std::string waits_for() const;

 private:
  [[nodiscard]] bool is_shared(NodeId node) const;

  ClusterId cluster_;
  std::map<Endpoint, NodeId> answers_;  // of every seed; 0: none yet
  std::set<Endpoint> own_;              // seeds that lead back here
  std::string rival_;                   // the seed that answered so last; empty: none has
};

}  // namespace gossipd
