#include "daemon/rest/status_log.h"

#include <algorithm>

#include "core/base/printable.h"
#include "daemon/log/log.h"

namespace gossipd {

void StatusLog::warn(const std::string& text, Instant now) {
  if (!warnings_.empty() && warnings_.back().text == text) {
    warnings_.back().at = now;
    return;
  }
  log_line(Level::warning, "event=warning text=" + log_quoted(text));
  remember(text, now);
}

void StatusLog::remember(const std::string& text, Instant now) {
  warnings_.push_back({now, text});
  if (warnings_.size() > warnings_max) warnings_.pop_front();
}

void StatusLog::turned_away(const std::string& peer, const Error& reason, Instant now) {
  log_line(Level::warning, "event=turned-away peer=" + peer + " code=" + reason.code +
                               " reason=" + log_quoted(reason.text));
  turned_away_.note(true, peer, reason, now);
}

void StatusLog::restore_history(double interval_s, std::vector<HistoryPoint> points, bool saved) {
  if (!points.empty()) {
    ran_before_s_ = points.back().time_s;
    bytes_sent_before_ = points.back().bytes_sent;
  }
  history_.restore(interval_s, std::move(points), saved);
}

void StatusLog::record(const NodeSummary& node, std::optional<Figures> evaluation,
                       std::uint64_t bytes_sent, Instant now) {
  HistoryPoint point;
  point.time_s = ran_before_s_ + seconds(now - started_);
  point.cluster_samples = node.cluster_samples;
  point.step = node.step;
  point.loss = node.loss;
  point.evaluation = evaluation;
  point.consensus_distance = node.consensus_distance;
  point.bytes_sent = bytes_sent_before_ + bytes_sent;
  history_.add(point);
}

void StatusLog::describe(StatusView& status, Instant now) const {
  for (const Refusal& refusal : turned_away_.latest()) status.node.refusals.push_back(refusal);
  std::ranges::stable_sort(status.node.refusals, {}, &Refusal::at);
  status.refusals_now_s = seconds(now.time_since_epoch());
  status.uptime_s = seconds(now - started_);
  status.stalls = stalls_;
  for (const TimedWarning& w : warnings_) status.warnings.push_back({seconds(now - w.at), w.text});
}

}  // namespace gossipd
