#include "core/node/founding.h"

#include <algorithm>
#include <utility>

namespace gossipd {

Founding::Founding(ClusterId cluster, const std::vector<Endpoint>& seeds) : cluster_(cluster) {
  set_seeds(seeds);
}

void Founding::set_seeds(const std::vector<Endpoint>& seeds) {
  if (!is_wanted()) return;
  std::map<Endpoint, NodeId> before = std::exchange(answers_, {});
  const std::set<Endpoint> own = std::exchange(own_, {});
  for (const Endpoint& seed : seeds) {
    if (own.contains(seed))
      own_.insert(seed);
    else
      answers_[seed] = before[seed];
  }
}

void Founding::on_self(const Endpoint& seed) {
  if (answers_.erase(seed) > 0) own_.insert(seed);
}

bool Founding::on_free(const Endpoint& seed, NodeId node) {
  const auto found = answers_.find(seed);
  if (found == answers_.end() || found->second == node) return false;
  found->second = node;
  if (rival_ == to_string(seed)) rival_.clear();
  return true;
}

void Founding::on_rival(const Endpoint& seed) {
  const auto found = answers_.find(seed);
  if (found == answers_.end()) return;
  found->second = NodeId{};
  rival_ = to_string(seed);
}

bool Founding::is_shared(NodeId node) const {
  return std::ranges::count_if(answers_, [node](const auto& a) { return a.second == node; }) > 1;
}

bool Founding::is_due() const {
  return is_wanted() && std::ranges::all_of(answers_, [this](const auto& answer) {
           return answer.second != NodeId{} && !is_shared(answer.second);
         });
}

std::string Founding::waits_for() const {
  if (!rival_.empty())
    return "one founder: " + rival_ +
           " would found the cluster as well; start exactly one node with --bootstrap 0";
  std::string silent, shared;
  for (const auto& [seed, node] : answers_) {
    std::string& list = node == NodeId{} ? silent : shared;
    if (node == NodeId{} || is_shared(node)) list += (list.empty() ? "" : ", ") + to_string(seed);
  }
  if (silent.empty())
    return "another node: " + shared + " lead to one; name each other member once in `join`";
  return silent +
         " to say whether there is a cluster already; this node founds one only if every other "
         "member has said that it has none";
}

}  // namespace gossipd
