// daemon/rest/history.h - how this node's training went, in a bounded number of points.
//
// A point every few seconds and one per evaluation. When the list is full every second plain point
// goes and the interval doubles, so that a run of weeks still shows from its first second on.
// Loop thread only.
#pragma once

#include <optional>
#include <vector>

#include "core/base/types.h"
#include "models/networks/figures.h"

namespace gossipd {

struct HistoryPoint {
  double time_s = 0;  // since this process started
  Samples cluster_samples = 0;
  Step step = 0;
  double loss = 0;
  std::optional<Figures> evaluation;
  double consensus_distance = 1;
  std::uint64_t bytes_sent = 0;  // on the wire, everything included
};

class History {
 public:
  static constexpr std::size_t points_max = 2048;

  explicit History(double interval_s = 2.0) : interval_s_(interval_s) {}

  // Keeps the point if it is an evaluation or the interval has passed.
  void add(const HistoryPoint& point);
  [[nodiscard]] const std::vector<HistoryPoint>& points() const { return points_; }
  [[nodiscard]] double interval_s() const { return interval_s_; }

 private:
  void thin_out();

  std::vector<HistoryPoint> points_;
  double interval_s_;
  double last_plain_s_ = -1;
};

}  // namespace gossipd
