#include "core/node/peer_trust.h"

#include <algorithm>
#include <vector>

namespace gossipd {

bool is_trusted(NodeId peer, double ratio_max, bool at_rest, const Directory& directory,
                const LossOf& loss_of) {
  if (ratio_max <= 0) return true;
  const double theirs = loss_of(peer);
  if (theirs <= 0) return true;
  std::vector<double> losses;
  for (const auto& [id, entry] : directory.entries())
    if ((entry.met || id == directory.self().id) && entry.record.state == MemberState::alive &&
        (at_rest || entry.record.phase == Phase::training || id == peer))
      if (const double loss = loss_of(id); loss > 0) losses.push_back(loss);
  if (losses.size() < losses_min) return true;
  const auto middle = losses.begin() + static_cast<std::ptrdiff_t>((losses.size() - 1) / 2);
  std::nth_element(losses.begin(), middle, losses.end());
  const double loss_max = ratio_max * *middle;
  return theirs <= loss_max || (at_rest && loss_of(directory.self().id) > loss_max);
}

}  // namespace gossipd
