// core/node/outer_momentum.h - how much of the common movement goes on, and what own steps give for
// it.
//
// The problem: momentum of the cluster's model is applied link by link, wherever an exchange is
// over (core/exchange/mixer.h), and would make the cluster faster than its learning rate says.
//
// The answer: each link brings its share of the momentum, and the sum of the shares that links
// really bring is taken back from the node's own steps. Pure functions.
#pragma once

#include <map>

#include "core/exchange/policy.h"
#include "core/exchange/trainer_port.h"
#include "core/node/round_link.h"

namespace gossipd {

// The line's round trip in own steps of `step_seconds`; 0: not known.
[[nodiscard]] double line_steps(const RoundLink&, double step_seconds);

// The line's round trip in units of far_line_steps() own steps of `step_seconds`. The shortest one
// counts, because a line that is slow because it is narrow is not far, and larger deltas would make
// it slower still. 0: not known.
[[nodiscard]] double line_periods(const ExchangePolicy&, const RoundLink&, double step_seconds);

// This link's share of the outer momentum, where `open` links are open.
[[nodiscard]] double momentum_share(const ExchangePolicy&, const RoundLink&, std::size_t open,
                                    double step_seconds);

// How many times as many steps as this node the peer makes, and the fastest neighbour; 1 to 16.
[[nodiscard]] double peer_pace(const RoundLink&, double step_seconds);
[[nodiscard]] double fastest_pace(std::span<const RoundLink>, double step_seconds);

// Whether this link brings momentum: with an exchange in the last four periods of the slower end,
// or round trips. `silent`: own steps since the last turn on it.
[[nodiscard]] bool brings_momentum(const ExchangePolicy&, const RoundLink&, Step silent,
                                   double step_seconds);

// The sum of the shares of links that bring them. `spoken`: the own step of the last turn to each
// peer; `last`: the snapshot at hand.
[[nodiscard]] double carried_share(const ExchangePolicy&, std::span<const RoundLink>,
                                   const std::map<NodeId, Step>& spoken, const Snapshot& last);

}  // namespace gossipd
