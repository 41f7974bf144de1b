// daemon/disk/disk_watch.h - says when a disk has become slow, and when it is well again.
//
// Once each way: a disk that stalls every few seconds is one story, told again after half a minute
// without a slow write. Loop thread only.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "core/base/result.h"
#include "core/base/types.h"
#include "daemon/disk/disk_view.h"

namespace gossipd {

class DiskWatch {
 public:
  explicit DiskWatch(std::string directory) : directory_(std::move(directory)) {}

  // Once a second. A warning to show, if the disk has just become slow; the log is told here.
  [[nodiscard]] std::optional<std::string> look(const DiskView& disk, Instant now);
  [[nodiscard]] bool slow() const { return slow_at_.has_value(); }

 private:
  std::string directory_;
  std::optional<Instant> slow_at_;  // the last look at which a write took long
};

// What a stop that has waited in vain for these parts says of it. The disk is blamed where a write
// has taken long.
[[nodiscard]] Error stopped_too_late(const DiskView& disk, const std::string& directory,
                                     const std::set<std::string>& waited_for);

}  // namespace gossipd
