#include "core/node/outer_momentum.h"

#include <algorithm>

namespace gossipd {
namespace {

constexpr double silent_periods_max = 4;
constexpr double pace_max = 16;  // believed of a neighbour

// The peer's step in own steps; 1: not known.
double peer_steps(const RoundLink& item, double step_seconds) {
  const double theirs = item.link.peer_step_seconds();
  if (!(theirs > 0 && step_seconds > 0)) return 1;
  return std::clamp(theirs / step_seconds, 1 / pace_max, pace_max);
}

}  // namespace

std::size_t count_open(std::span<const RoundLink> links) {
  return static_cast<std::size_t>(
      std::ranges::count_if(links, [](const RoundLink& item) { return item.link.is_open(); }));
}

double line_steps(const RoundLink& item, double step_seconds) {
  return item.connected && step_seconds > 0 ? item.least_rtt_seconds / step_seconds : 0;
}

double line_periods(const ExchangePolicy& policy, const RoundLink& item, double step_seconds) {
  return line_steps(item, step_seconds) / static_cast<double>(far_line_steps(policy));
}

double momentum_share(const ExchangePolicy& policy, const RoundLink& item, std::size_t open,
                      double step_seconds) {
  const double momentum = outer_momentum_for(policy, line_periods(policy, item, step_seconds));
  return momentum / static_cast<double>(std::max<std::size_t>(open, 1));
}

double peer_pace(const RoundLink& item, double step_seconds) {
  return std::max(1.0, 1 / peer_steps(item, step_seconds));
}

double fastest_pace(std::span<const RoundLink> links, double step_seconds) {
  double fastest = 1;
  for (const RoundLink& item : links)
    if (item.link.is_open()) fastest = std::max(fastest, peer_pace(item, step_seconds));
  return fastest;
}

bool brings_momentum(const ExchangePolicy& policy, const RoundLink& item, Step silent,
                     double step_seconds) {
  const double period =
      static_cast<double>(policy.period_steps) * std::max(1.0, peer_steps(item, step_seconds));
  const double apart = std::max(period, line_steps(item, step_seconds));
  return static_cast<double>(silent) <= silent_periods_max * apart;
}

double carried_share(const ExchangePolicy& policy, std::span<const RoundLink> links,
                     const std::map<NodeId, Step>& spoken, const Snapshot& last) {
  const std::size_t open = count_open(links);
  double sum = 0;
  for (const RoundLink& item : links) {
    const auto found = spoken.find(item.peer);
    // A first turn carries no movement.
    if (!item.connected || !item.link.is_open() || found == spoken.end() ||
        item.link.turns_spoken() < 2)
      continue;
    // Nor does one of which nothing is taken.
    if (!item.link.trusts_peer()) continue;
    const Step silent = last.step - std::min(last.step, found->second);
    if (brings_momentum(policy, item, silent, last.step_seconds))
      sum += momentum_share(policy, item, open, last.step_seconds);
  }
  return sum;
}

}  // namespace gossipd
