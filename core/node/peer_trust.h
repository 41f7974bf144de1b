// core/node/peer_trust.h - whether a neighbour's model is to be taken from at all.
//
// The problem: a neighbour that trains on bad data or at a wild rate pulls this node's model away,
// step by step, below every bound on a single transfer.
//
// The answer: a neighbour whose loss is more than `loss_ratio_max` times the members' median trains
// on something else, and nothing is taken from it. With fewer than `losses_min` losses nobody can
// tell whose is wrong, so everybody is trusted.
//
// At rest the losses are those of the last steps. A node whose own loss is that large then takes
// from everybody, since all models must become one: that of the others. It takes a neighbour's
// model nearly whole and reports that neighbour's loss as its own from then on, so that nodes that
// are linked only through it end with the same model. Pure.
#pragma once

#include <functional>

#include "core/membership/directory.h"

namespace gossipd {

inline constexpr std::size_t losses_min = 3;

// The loss that a member says; 0: none is known.
using LossOf = std::function<double(NodeId)>;

// `ratio_max` 0: everybody is trusted.
[[nodiscard]] bool is_trusted(NodeId peer, double ratio_max, bool at_rest,
                              const Directory& directory, const LossOf& loss_of);
// At rest no neighbour takes anything from this node itself, as its own loss is too large.
[[nodiscard]] bool is_distrusted_at_rest(double ratio_max, const Directory& directory,
                                         const LossOf& loss_of);

}  // namespace gossipd
