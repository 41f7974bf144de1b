// tests/sim/event_queue.h - the future events in virtual time.
//
// Events of one instant run in the order they were added, so every run is the same.
#pragma once

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "core/base/types.h"

namespace gossipd::sim {

class EventQueue {
 public:
  void at(Instant when, std::function<void()> run) {
    events_.push(Event{std::max(when, now_), ++order_, std::move(run)});
  }
  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }  // of events that have run

  // Runs the next event if it is not later than `end`.
  bool step(Instant end) {
    if (events_.empty() || events_.top().at > end) return false;
    // top() is const, but the event leaves at once
    const Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ = event.at;
    ++count_;
    event.run();
    return true;
  }
  void skip_to(Instant when) { now_ = std::max(now_, when); }

 private:
  struct Event {
    Instant at;
    std::uint64_t order;
    std::function<void()> run;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Instant now_{std::chrono::seconds(1000)};
  std::uint64_t order_ = 0, count_ = 0;
};

}  // namespace gossipd::sim
