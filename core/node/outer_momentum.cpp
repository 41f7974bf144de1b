#include "core/node/outer_momentum.h"

#include <algorithm>

namespace gossipd {
namespace {

constexpr double silent_periods_max = 4;

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

double carried_share(const ExchangePolicy& policy, std::span<const RoundLink> links,
                     const std::map<NodeId, Step>& spoken, const Snapshot& last) {
  const std::size_t open = count_open(links);
  double sum = 0;
  for (const RoundLink& item : links) {
    const auto found = spoken.find(item.peer);
    // A first turn carries no movement.
    if (!item.connected || !item.link.is_open() || found == spoken.end() ||
        item.link.counters().turns_spoken < 2)
      continue;
    // Nor does one of which nothing is taken.
    if (!item.link.trusts_peer()) continue;
    const auto silent = static_cast<double>(last.step - std::min(last.step, found->second));
    const double apart =
        std::max(static_cast<double>(policy.period_steps), line_steps(item, last.step_seconds));
    if (silent <= silent_periods_max * apart)
      sum += momentum_share(policy, item, open, last.step_seconds);
  }
  return sum;
}

}  // namespace gossipd
