// core/node/peer_trust.h - whether a neighbour's model is to be taken from at all.
//
// The problem: a neighbour that trains on bad data or at a wild rate pulls this node's model away,
// step by step, below every bound on a single transfer.
//
// The answer: a neighbour whose loss is more than `loss_ratio_max` times the members' median trains
// on something else, and nothing is taken from it. Of fewer than `losses_min` losses it cannot be
// told whose is wrong. At rest the losses are those of the last steps, and a node whose own is as
// large takes from everybody: the models must become one, which is then the others'. It takes a
// neighbour's model nearly whole and says that one's loss from then on, so that those whom only it
// links become one, too. Pure.
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
