// net/event_loop.h - the protocol strand: one thread for all state that has no locks.
//
// Transport, HTTP server, timers and the driver of the core all live on one loop and call each
// other directly. Other threads reach it through post() only. This header hides Asio, so the daemon
// can own the loop without including it. The loop must outlive its users.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/base/types.h"

namespace boost::asio {
class io_context;
}

namespace gossipd {

class EventLoop {
 public:
  using Task = std::function<void()>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs tasks on the calling thread until stop(). An exception from a task comes out here.
  void run();
  // Runs tasks until `condition` holds (checked before the first and after every task) or `limit`
  // has passed; returns whether it holds. For start-up, shutdown and tests.
  bool run_until(const std::function<bool()>& condition, Duration limit);

  // Runs, after stop(), what is ready by now, and a signal that came until now.
  void run_ready();

  void stop();           // any thread; run() returns soon
  void post(Task task);  // any thread; runs later on the loop, in order
  // Calls `handle` on the loop for each of these signals from now on; replaces their default
  // action.
  void on_signals(const std::vector<int>& signals, std::function<void(int)> handle);

  // The core's Instant: never set, and goes on while the machine sleeps, which is no silence of
  // the others. Any thread.
  [[nodiscard]] static Instant now();
  [[nodiscard]] boost::asio::io_context& io();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A one-shot alarm on the loop that can be set again and again, cheaply: moving it later costs no
// system call. After a sleep of the machine it fires late by at most what was left of it then. Loop
// thread only. Never fires after cancel() or destruction; destroying it inside
// its own callback is allowed.
class Timer {
 public:
  Timer(EventLoop& loop, EventLoop::Task on_fire);
  Timer(boost::asio::io_context& io, EventLoop::Task on_fire);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void arm_at(Instant due);  // replaces an earlier arming
  void arm_after(Duration delay);
  void cancel();
  [[nodiscard]] bool armed() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the pending wait, which may outlive the timer
};

}  // namespace gossipd
