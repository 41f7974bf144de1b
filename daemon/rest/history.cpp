#include "daemon/rest/history.h"

namespace gossipd {

void History::add(const HistoryPoint& point) {
  if (!point.evaluation) {
    if (last_plain_s_ >= 0 && point.time_s < last_plain_s_ + interval_s_) return;
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
}

}  // namespace gossipd
