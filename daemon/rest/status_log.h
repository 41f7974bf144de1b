// daemon/rest/status_log.h - what has happened on this node, as far as it is shown later.
//
// Warnings, connections that were turned away, how long events kept the protocol thread, and the
// history of training. The driver notes them as they come; each list has a named maximum. Loop
// thread only.
#pragma once

#include <deque>
#include <string>

#include "daemon/rest/member_history.h"
#include "daemon/rest/view.h"

namespace gossipd {

class StatusLog {
 public:
  explicit StatusLog(Instant started) : started_(started) {}

  // Shows it as the newest. Logs it, unless the log had it in the last minutes.
  void warn(const std::string& text, Instant now);
  // Shows it without a line in the log.
  void remember(const std::string& text, Instant now);
  // A connection that never became a session, so that the node knows nothing of it.
  void turned_away(const std::string& peer, const Error& reason, Instant now);
  void event_took(Duration length) { stalls_.note(length); }
  // `last`: of this process, so that the next one goes on from it.
  void record(const NodeSummary& node, std::optional<Figures> evaluation, const WireView& wire,
              Instant now, bool last = false);
  // When the next column of the members' curves is due.
  [[nodiscard]] bool members_due(Instant now) const {
    return members_.due(ran_before_s_ + seconds(now - started_));
  }
  void record_members(const std::vector<MemberView>& members, Instant now);

  // Of earlier processes of this node, before anything is recorded.
  void restore_history(double interval_s, std::vector<HistoryPoint> points, bool saved);
  [[nodiscard]] const History& history() const { return history_; }
  [[nodiscard]] History& history() { return history_; }
  [[nodiscard]] const MemberHistory& member_history() const { return members_; }
  // Adds what was noted to the node's own refusals.
  void describe(StatusView& status, Instant now) const;

 private:
  struct TimedWarning {
    Instant at{};
    Instant logged{};
    std::string text;
  };
  const Instant started_;
  History history_;
  double ran_before_s_ = 0;              // earlier processes
  std::uint64_t bytes_sent_before_ = 0;  // likewise
  MemberHistory members_;
  StallView stalls_;
  RefusalLog turned_away_;
  std::deque<TimedWarning> warnings_;  // newest last, at most warnings_max
};

}  // namespace gossipd
