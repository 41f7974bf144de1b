#include "daemon/rest/history.h"

namespace gossipd {

void History::restore(double interval_s, std::vector<HistoryPoint> points, bool saved) {
  interval_s_ = interval_s;
  points_ = std::move(points);
  if (!points_.empty()) last_plain_s_ = points_.back().time_s;
  if (saved) saved_ = points_.size();
}

History::Unsaved History::take_unsaved() {
  Unsaved unsaved{.whole = !saved_, .interval_s = interval_s_, .points = {}};
  const auto first = points_.begin() + static_cast<std::ptrdiff_t>(saved_.value_or(0));
  unsaved.points.assign(first, points_.end());
  saved_ = points_.size();
  return unsaved;
}

void History::add(const HistoryPoint& point, bool always) {
  if (!point.evaluation) {
    if (!always && last_plain_s_ >= 0 && point.time_s < last_plain_s_ + interval_s_) return;
    last_plain_s_ = point.time_s;
  }
  if (points_.size() >= points_max) thin_out();
  points_.push_back(point);
}

void History::thin_out() {
  const auto drop_every_second = [this](bool evaluations_too) {
    std::vector<HistoryPoint> kept;
    std::size_t seen = 0;
    for (const HistoryPoint& p : points_)
      if ((p.evaluation && !evaluations_too) || seen++ % 2 == 0) kept.push_back(p);
    points_ = std::move(kept);
  };
  drop_every_second(false);
  if (points_.size() > points_max * 3 / 4) drop_every_second(true);
  interval_s_ *= 2;
  saved_.reset();
}

}  // namespace gossipd
