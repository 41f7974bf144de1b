#include "net/event_loop.h"

#include <time.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

namespace gossipd {

namespace asio = boost::asio;

struct EventLoop::Impl {
  asio::io_context io{1};  // one thread runs it; post() is still safe from others
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  std::optional<asio::signal_set> signals;
  std::function<void(int)> handle_signal;

  void wait_for_signal() {
    signals->async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      handle_signal(number);
      wait_for_signal();
    });
  }
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::run() {
  impl_->io.restart();
  impl_->io.run();
}

bool EventLoop::run_until(const std::function<bool()>& condition, Duration limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  impl_->io.restart();
  while (!condition()) {
    if (impl_->io.run_one_until(end) == 0) return condition();
  }
  return true;
}

void EventLoop::run_ready() {
  impl_->io.restart();
  impl_->io.poll();
}

void EventLoop::stop() { impl_->io.stop(); }

void EventLoop::post(Task task) { asio::post(impl_->io, std::move(task)); }

void EventLoop::on_signals(const std::vector<int>& signals, std::function<void(int)> handle) {
  impl_->handle_signal = std::move(handle);
  impl_->signals.emplace(impl_->io);
  for (const int number : signals) impl_->signals->add(number);
  impl_->wait_for_signal();
}

Instant EventLoop::now() {
  timespec now{};
  (void)clock_gettime(CLOCK_BOOTTIME, &now);
  return Instant(std::chrono::duration_cast<Duration>(std::chrono::seconds(now.tv_sec) +
                                                      std::chrono::nanoseconds(now.tv_nsec)));
}

asio::io_context& EventLoop::io() { return impl_->io; }

// The pending wait may end before `due` and is then renewed. So an alarm that moves later and
// later, as a deadline does, costs nothing until it would have fired.
struct Timer::State : std::enable_shared_from_this<Timer::State> {
  State(asio::io_context& io, EventLoop::Task task) : timer(io), on_fire(std::move(task)) {}

  asio::steady_timer timer;
  EventLoop::Task on_fire;
  std::optional<Instant> due;
  std::optional<Instant> waiting_for;
  bool owned = true;  // the Timer lives

  void wait(Instant until) {
    waiting_for = until;
    // Setting the expiry cancels the pending wait, whose handler then sees that it was replaced.
    // In the steady clock, which stops while the machine sleeps.
    timer.expires_after(std::chrono::ceil<std::chrono::steady_clock::duration>(
        std::max(until - EventLoop::now(), Duration{})));
    timer.async_wait([self = shared_from_this(), until](const boost::system::error_code& error) {
      if (error || !self->owned || self->waiting_for != until) return;
      self->waiting_for.reset();
      self->expired();
    });
  }

  void expired() {
    if (!due) return;
    if (*due > EventLoop::now()) return wait(*due);
    due.reset();
    on_fire();
  }
};

Timer::Timer(EventLoop& loop, EventLoop::Task on_fire) : Timer(loop.io(), std::move(on_fire)) {}
Timer::Timer(asio::io_context& io, EventLoop::Task on_fire)
    : state_(std::make_shared<State>(io, std::move(on_fire))) {}

Timer::~Timer() {
  state_->owned = false;
  state_->due.reset();
  state_->timer.cancel();
}

void Timer::arm_at(Instant due) {
  state_->due = due;
  if (!state_->waiting_for || *state_->waiting_for > due) state_->wait(due);
}

void Timer::arm_after(Duration delay) { arm_at(EventLoop::now() + delay); }
void Timer::cancel() { state_->due.reset(); }
bool Timer::armed() const { return state_->due.has_value(); }

}  // namespace gossipd
