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
  // for which this node has run: its processes, one after the other, without the time between
  double time_s = 0;
  Samples cluster_samples = 0;
  Step step = 0;
  double loss = 0;
  std::optional<Figures> evaluation;
  double consensus_distance = 1;
  double learning_rate = 0;
  double samples_per_second = 0;
  std::uint64_t bytes_sent = 0;  // on the wire, everything included, by all processes
};

class History {
 public:
  static constexpr std::size_t points_max = 2048;

  explicit History(double interval_s = 2.0) : interval_s_(interval_s) {}

  // Of earlier processes, before anything is added. `saved`: a file has just these points.
  void restore(double interval_s, std::vector<HistoryPoint> points, bool saved);
  // Keeps the point if it is an evaluation or the interval has passed, or `always`.
  void add(const HistoryPoint& point, bool always = false);
  [[nodiscard]] const std::vector<HistoryPoint>& points() const { return points_; }
  [[nodiscard]] double interval_s() const { return interval_s_; }

  // What a file lacks: the points since the last call, or the whole history.
  struct Unsaved {
    bool whole = false;
    double interval_s = 0;
    std::vector<HistoryPoint> points;
  };
  [[nodiscard]] Unsaved take_unsaved();
  // What was taken last did not get to the file, so the next is the whole history.
  void not_saved() { saved_.reset(); }

 private:
  void thin_out();

  std::vector<HistoryPoint> points_;
  double interval_s_;
  double last_plain_s_ = -1;
  // so many points, the first ones, are in the file; nothing: it is to be written anew
  std::optional<std::size_t> saved_;
};

}  // namespace gossipd
