// core/node/bulk_window.h - how much of a turn may wait on a link's way out.
//
// The problem: a turn for which there is no room waits for a later round, so that what a slow line
// carries is no older than it must be. On a fast line a large model then pays a training step and a
// pass over the model for every 8 MiB: a billion parameters whole (1 GB in int8) took 128 rounds.
//
// The answer: where the line has sent all by the next round, twice as much may wait from then on,
// up to a 32nd of the model in fp32; where half is still waiting, half as much. Pure; core strand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "core/exchange/policy.h"

namespace gossipd {

class BulkWindow {
 public:
  // `least` bytes may always wait.
  explicit BulkWindow(std::size_t least) : least_(least) {}

  // Bytes that may wait.
  [[nodiscard]] std::size_t of(NodeId peer) const {
    const auto found = links_.find(peer);
    return found == links_.end() ? least_ : found->second.bytes;
  }
  // A turn waits for a later round.
  void pause(NodeId peer) { links_.try_emplace(peer, Window{least_}).first->second.paused = true; }
  // A round of a model of `floats` begins, and `waiting` bytes have not left yet.
  void begin_round(NodeId peer, std::size_t waiting, std::uint64_t floats) {
    const auto found = links_.find(peer);
    if (found == links_.end() || !std::exchange(found->second.paused, false)) return;
    std::size_t& bytes = found->second.bytes;
    if (waiting == 0)
      bytes = std::max(least_, std::min<std::size_t>({sizeof(float) * floats / 32, 2 * bytes,
                                                      bulk_window_bytes_max}));
    else if (waiting > bytes / 2)
      bytes = std::max(least_, bytes / 2);
  }
  // Of peers that are not listed any more.
  void forget_unless(const auto& is_listed) {
    std::erase_if(links_, [&](const auto& item) { return !is_listed(item.first); });
  }

 private:
  struct Window {
    std::size_t bytes;
    bool paused = false;
  };

  std::size_t least_;
  std::map<NodeId, Window> links_;
};

}  // namespace gossipd
