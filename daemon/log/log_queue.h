// daemon/log/log_queue.h - a log that a thread of its own writes, so that a slow disk or a full
// pipe keeps nobody.
//
// Wraps another sink. Lines wait in a queue of `lines_max`; lines beyond that, and lines that the
// sink fails to write, are dropped, counted, and reported once there is room again. The first
// failure of a row is reported on standard error at once. Any thread may log.
#pragma once

#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/sinks/sink.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace gossipd {

class LogQueue final : public spdlog::sinks::sink {
 public:
  static constexpr std::size_t lines_max = 8192;

  // What a line becomes before it is written; on the queue's thread.
  using Render = std::function<std::string(std::string_view words)>;
  explicit LogQueue(std::shared_ptr<spdlog::sinks::sink> out, Render render = {});
  // Gives up after drain_limit: then the thread, which hangs in a write, is left to the end of the
  // process.
  ~LogQueue() override;
  static constexpr std::chrono::seconds drain_limit{2};

  void log(const spdlog::details::log_msg& message) override;
  void flush() override {}  // the thread does, whenever the queue is empty
  void set_pattern(const std::string& pattern) override { out_->set_pattern(pattern); }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    out_->set_formatter(std::move(formatter));
  }

  // Until all lines so far are written, or the time is up. False: they are not.
  bool drain(std::chrono::milliseconds limit);

 private:
  // What the thread holds on to beyond the end of a queue that gave up.
  struct Shared {
    std::mutex mutex;  // of all below
    std::condition_variable wakes, drained;
    std::deque<spdlog::details::log_msg_buffer> lines;
    std::size_t dropped = 0;
    bool writing = false, stop = false;
  };
  static void run(const std::shared_ptr<Shared>& shared,
                  const std::shared_ptr<spdlog::sinks::sink>& out, const Render& render);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::shared_ptr<spdlog::sinks::sink> out_;
  std::thread thread_;
};

}  // namespace gossipd
