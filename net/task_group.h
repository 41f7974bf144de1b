// net/task_group.h - coroutines whose end their starter waits for.
//
// Nothing is detached: every coroutine is counted until it ends. An exception in one is our own
// mistake (network errors are values), so it leaves the loop. Loop thread only. Includes Asio: for
// the sources of net only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace gossipd {

class TaskGroup {
 public:
  explicit TaskGroup(boost::asio::io_context& io) : io_(io), state_(std::make_shared<State>()) {}

  // Starts from the loop, never inside this call. `coroutine` must own what it uses.
  void spawn(boost::asio::awaitable<void> coroutine) {
    ++state_->running;
    boost::asio::post(io_, [&io = io_, state = state_, coroutine = std::move(coroutine)]() mutable {
      boost::asio::co_spawn(io, std::move(coroutine), [state](const std::exception_ptr& error) {
        if (error) std::rethrow_exception(error);
        if (--state->running == 0 && state->on_empty) std::exchange(state->on_empty, nullptr)();
      });
    });
  }

  // Calls `done` once from the loop, as soon as nothing runs.
  void when_empty(std::function<void()> done) {
    if (state_->running == 0) {
      boost::asio::post(io_, std::move(done));
    } else {
      state_->on_empty = std::move(done);
    }
  }

 private:
  struct State {
    std::size_t running = 0;
    std::function<void()> on_empty;
  };
  boost::asio::io_context& io_;
  std::shared_ptr<State> state_;  // shared with the completions, which may outlive the group
};

}  // namespace gossipd
