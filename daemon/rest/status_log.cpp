#include "daemon/rest/status_log.h"

#include <algorithm>

#include "core/base/printable.h"
#include "daemon/log/log.h"

namespace gossipd {

namespace {

constexpr Duration warn_again_after = std::chrono::minutes(5);

}  // namespace

void StatusLog::warn(const std::string& text, Instant now) {
  const auto before = std::ranges::find(warnings_, text, &TimedWarning::text);
  if (before == warnings_.end()) {
    log_warning(text);
    return remember(text, now);
  }
  TimedWarning again = std::move(*before);
  warnings_.erase(before);
  again.at = now;
  if (now - again.logged >= warn_again_after) {
    log_warning(text);
    again.logged = now;
  }
  warnings_.push_back(std::move(again));
}

void StatusLog::remember(const std::string& text, Instant now) {
  warnings_.push_back({now, now, text});
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
                       const WireView& wire, Instant now, bool last) {
  HistoryPoint point;
  point.time_s = ran_before_s_ + seconds(now - started_);
  point.cluster_samples = node.cluster_samples;
  point.step = node.step;
  point.loss = node.loss;
  point.evaluation = evaluation;
  point.consensus_distance = node.consensus_distance;
  point.learning_rate = node.learning_rate;
  point.samples_per_second = node.samples_per_second;
  point.bytes_sent = bytes_sent_before_ + wire.bytes_sent;
  history_.add(point, last);
}

void StatusLog::record_members(const std::vector<MemberView>& members, Instant now) {
  members_.add(ran_before_s_ + seconds(now - started_), members);
}

void StatusLog::describe(StatusView& status, Instant now) const {
  for (const Refusal& refusal : turned_away_.latest()) status.node.refusals.push_back(refusal);
  std::ranges::stable_sort(status.node.refusals, {}, &Refusal::at);
  status.refusals_now_s = seconds(now.time_since_epoch());
  status.uptime_s = seconds(now - started_);
  status.ran_s = ran_before_s_ + status.uptime_s;
  status.stalls = stalls_;
  for (const TimedWarning& w : warnings_) status.warnings.push_back({seconds(now - w.at), w.text});
}

}  // namespace gossipd
