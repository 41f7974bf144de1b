// daemon/disk/disk_view.h - how the disk keeps up, as it can be looked at. A plain value.
#pragma once

#include <cstdint>
#include <string>

namespace gossipd {

// What the protocol thread has given to its disk writer, and checkpoints under way.
struct DiskView {
  std::string writing;      // the file under way; empty: none
  double writing_s = 0;     // for so long
  double checkpoint_s = 0;  // for so long a checkpoint is under way; 0: none
  double slowest_s = 0;     // the longest write so far, the one under way included
  std::size_t waiting = 0;
  std::uint64_t written = 0, failed = 0;
  std::uint64_t replaced = 0;  // by a newer state, before they were written
  bool slow = false;           // a write takes long, or did within the last half minute
};
[[nodiscard]] bool takes_long(const DiskView&);
inline constexpr double disk_slow_after_s = 5;         // of a small file
inline constexpr double checkpoint_slow_after_s = 30;  // of a whole model

}  // namespace gossipd
