#include "tests/sim/scale_cluster.h"

#include <algorithm>

namespace gossipd::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration limit = 600s;
constexpr std::uint64_t first_id = 0x1000;  // VirtualCluster's
constexpr std::size_t parameters = 4;

Schema tiny_schema() {
  return Schema::build({Segment{"x", {parameters}, 0, parameters, SegmentKind::parameter}}).value();
}

}  // namespace

ScaleCluster::ScaleCluster(std::size_t members, std::size_t known_max)
    : known_max_(known_max), cluster_(tiny_schema()) {
  cluster_.watch(*this);
  cluster_.keep_no_logs();
  // No disks: they would hold members times members records, and no node restarts.
  Hooks hooks;
  hooks.write = [](std::size_t, const NodeState&, NodeState& written) { written.members = {}; };
  cluster_.set_hooks(std::move(hooks));
  for (std::size_t i = 0; i < members; ++i) {
    cluster_.add(options(i == 0 ? 0 : random_.below(i)));
    cluster_.run_for(20ms);
  }
}

NodeOptions ScaleCluster::options(std::size_t seed) const {
  NodeOptions options;
  if (cluster_.size() > 0) options.seeds = {seed};
  options.start.assign(parameters, 0.5f);
  options.step_time = 1s;
  options.exchange.enabled = false;
  options.membership.known_max = known_max_;
  return options;
}

// Checks once a second, since comparing everything is expensive.
Duration ScaleCluster::until(const std::function<bool()>& condition, Duration most) {
  const Instant begin = cluster_.now();
  while (!condition() && cluster_.now() - begin < most) cluster_.run_for(1s);
  return cluster_.now() - begin;
}

Duration ScaleCluster::until_all_know(std::size_t members, Duration most) {
  return until(
      [&] {
        for (std::size_t i = 0; i < cluster_.size(); ++i)
          if (lives(i) && cluster_.view(i).members.size() < members) return false;
        return true;
      },
      most);
}

ScaleCluster::Traffic ScaleCluster::traffic_during(Duration length) {
  sent_.assign(cluster_.size(), 0);
  cluster_.run_for(length);
  Traffic traffic;
  for (const std::uint64_t bytes : sent_) {
    traffic.mean +=
        static_cast<double>(bytes) / static_cast<double>(sent_.size()) / seconds(length);
    traffic.most = std::max(traffic.most, static_cast<double>(bytes) / seconds(length));
  }
  return traffic;
}

ScaleCluster::Overlay ScaleCluster::overlay() const {
  std::vector<std::vector<std::size_t>> peers(cluster_.size());
  std::size_t living = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (!lives(i)) continue;
    ++living;
    for (const LinkView& link : cluster_.view(i).links)
      if (link.state != "down" && link.state != "handshake")
        peers[i].push_back(static_cast<std::size_t>(raw(link.peer) - first_id));
  }
  Overlay overlay{cluster_.size(), 0, 0, false};
  std::vector<bool> seen(cluster_.size());
  std::size_t first = 0;
  while (!lives(first)) ++first;
  std::vector<std::size_t> reached{first};
  seen[first] = true;
  for (std::size_t at = 0; at < reached.size(); ++at)
    for (const std::size_t peer : peers[reached[at]])
      if (!seen[peer]) seen[peer] = true, reached.push_back(peer);
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (!lives(i)) continue;
    overlay.links_min = std::min(overlay.links_min, peers[i].size());
    overlay.links_max = std::max(overlay.links_max, peers[i].size());
    overlay.links_mean += static_cast<double>(peers[i].size()) / static_cast<double>(living);
  }
  overlay.connected = reached.size() == living;
  return overlay;
}

double ScaleCluster::figures_age_mean() {
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (!lives(i)) continue;
    for (const MemberView& member : cluster_.view(i).members) {
      const auto of = static_cast<std::size_t>(raw(member.record.id) - first_id);
      if (!lives(of)) continue;
      sum += static_cast<double>(cluster_.steps(of)) -
             static_cast<double>(member.record.samples) / cluster_.options(of).batch;
      ++count;
    }
  }
  return sum / count;
}

ScaleCluster::Counted ScaleCluster::counted() {
  Counted counted;
  double truth = 0, living = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i)
    truth += static_cast<double>(cluster_.samples(i));
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (!lives(i)) continue;
    const NodeView view = cluster_.view(i);
    ++living;
    counted.known += static_cast<double>(view.cluster_samples) / truth;
    const double error = static_cast<double>(view.cluster_samples_estimate) / truth - 1;
    counted.estimate_off_most = std::max(counted.estimate_off_most, std::abs(error));
  }
  counted.known /= living;
  return counted;
}

Duration ScaleCluster::join_one() {
  const std::size_t joiner = cluster_.add(options(random_.below(cluster_.size())));
  return until(
      [&] {
        for (std::size_t i = 0; i < cluster_.size(); ++i) {
          const NodeView view = cluster_.view(i);
          if (std::none_of(view.members.begin(), view.members.end(),
                           [&](const MemberView& m) { return m.record.id == cluster_.id(joiner); }))
            return false;
        }
        return cluster_.view(joiner).members.size() == cluster_.size();
      },
      limit);
}

void ScaleCluster::crash(std::size_t members) {
  while (members > 0) {
    const std::size_t victim = random_.below(cluster_.size());
    if (!lives(victim)) continue;
    cluster_.kill(victim, VirtualCluster::Death::power_lost);
    --members;
  }
}

Duration ScaleCluster::crash_one() {
  const std::size_t victim = 1 + random_.below(cluster_.size() - 1);
  cluster_.kill(victim, VirtualCluster::Death::power_lost);
  return until(
      [&] {
        for (std::size_t i = 0; i < cluster_.size(); ++i) {
          if (!lives(i)) continue;
          for (const MemberView& member : cluster_.view(i).members)
            if (member.record.id == cluster_.id(victim) &&
                member.record.state != MemberState::failed)
              return false;
        }
        return true;
      },
      limit);
}

void ScaleCluster::saturate(Duration length) {
  const Instant end = cluster_.now() + length;
  while (cluster_.now() < end) {
    for (std::size_t i = 0; i < cluster_.size(); ++i)
      if (lives(i) && random_.below(2) == 0)
        cluster_.freeze(i, from_seconds(1 + 2 * random_.uniform()));
    cluster_.run_for(4s);
  }
}

void ScaleCluster::sending(std::size_t from, std::size_t, SessionId, Lane, const Bytes& message) {
  if (sent_.size() > from) sent_[from] += message.size();
}

void ScaleCluster::logged(std::size_t, const std::string& text) {
  const std::string words = "event=member-failed peer=";
  std::uint64_t id = 0;
  if (text.starts_with(words) && from_hex(text.substr(words.size(), 16), id) && id >= first_id &&
      lives(static_cast<std::size_t>(id - first_id)))
    ++false_failures_;
}

}  // namespace gossipd::sim
