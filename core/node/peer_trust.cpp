#include "core/node/peer_trust.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace gossipd {

namespace {

// The loss beyond which a member's model is taken to be wrong; nothing: too few losses are known.
std::optional<double> loss_max(NodeId peer, double ratio_max, bool at_rest,
                               const Directory& directory, const LossOf& loss_of) {
  std::vector<double> losses;
  for (const auto& [id, entry] : directory.entries())
    if ((entry.met || id == directory.self().id) && entry.record.state == MemberState::alive &&
        (at_rest || entry.record.phase == Phase::training || id == peer))
      if (const double loss = loss_of(id); loss > 0) losses.push_back(loss);
  if (losses.size() < losses_min) return std::nullopt;
  const auto middle = losses.begin() + static_cast<std::ptrdiff_t>((losses.size() - 1) / 2);
  std::nth_element(losses.begin(), middle, losses.end());
  return ratio_max * *middle;
}

}  // namespace

bool is_trusted(NodeId peer, double ratio_max, bool at_rest, const Directory& directory,
                const LossOf& loss_of) {
  if (ratio_max <= 0) return true;
  const double theirs = loss_of(peer);
  if (theirs <= 0) return true;
  const std::optional<double> most = loss_max(peer, ratio_max, at_rest, directory, loss_of);
  return !most || theirs <= *most || (at_rest && loss_of(directory.self().id) > *most);
}

bool is_distrusted_at_rest(double ratio_max, const Directory& directory, const LossOf& loss_of) {
  if (ratio_max <= 0) return false;
  const NodeId self = directory.self().id;
  const std::optional<double> most = loss_max(self, ratio_max, true, directory, loss_of);
  return most && loss_of(self) > *most;
}

}  // namespace gossipd
