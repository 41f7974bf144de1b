#include "daemon/disk/disk_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/printable.h"
#include "daemon/log/log.h"

namespace gossipd {

namespace {

constexpr Duration well_after = std::chrono::seconds(30);  // without a slow write

std::string whole_seconds(double seconds) {
  return std::to_string(static_cast<std::int64_t>(std::lround(seconds)));
}

}  // namespace

std::optional<std::string> DiskWatch::look(const DiskView& disk, Instant now) {
  if (!takes_long(disk)) {
    if (slow_at_ && now - *slow_at_ >= well_after) {
      slow_at_.reset();
      log_line(Level::info, "event=disk-well slowest_s=" + whole_seconds(disk.slowest_s));
    }
    return std::nullopt;
  }
  if (std::exchange(slow_at_, now)) return std::nullopt;
  const std::string waited = whole_seconds(std::max(disk.writing_s, disk.checkpoint_s));
  const std::string what = disk.writing.empty() ? "a checkpoint" : disk.writing;
  log_line(Level::warning,
           "event=disk-slow seconds=" + waited + " writing=" + log_quoted(what) +
               " directory=" + log_quoted(directory_) +
               " hint=\"training goes on; a restart may know less than this node says now\"");
  return "the disk of " + directory_ + " is slow: " + what + " has been written for " + waited +
         " s; look for its errors in the system's log";
}

Error stopped_too_late(const DiskView& disk, const std::string& directory,
                       const std::set<std::string>& waited_for) {
  const bool small = disk.writing_s >= disk_slow_after_s;
  if (!small && disk.checkpoint_s < disk_slow_after_s) {
    std::string parts;
    for (const std::string& part : waited_for) parts += (parts.empty() ? "" : ", ") + part;
    return Error{"stop-too-slow",
                 "this node stops without waiting any longer for: " + parts +
                     "; the last checkpoint may be missing, the one before it is whole"};
  }
  return Error{"stop-too-slow",
               "the disk of " + directory + " has been writing " +
                   (small ? disk.writing : "a checkpoint") + " for " +
                   whole_seconds(small ? disk.writing_s : disk.checkpoint_s) +
                   " s; this node stops without waiting any longer. What lay there before is "
                   "whole; look for the disk's errors in the system's log"};
}

}  // namespace gossipd
