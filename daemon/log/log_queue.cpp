#include "daemon/log/log_queue.h"

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace gossipd {

LogQueue::LogQueue(std::shared_ptr<spdlog::sinks::sink> out)
    : out_(std::move(out)), thread_([shared = shared_, to = out_] { run(shared, to); }) {}

LogQueue::~LogQueue() {
  const bool drained = drain(drain_limit);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->wakes.notify_all();
  if (drained)
    thread_.join();
  else
    thread_.detach();  // it shares all it touches
}

void LogQueue::log(const spdlog::details::log_msg& message) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->lines.size() >= lines_max) {
      ++shared_->dropped;
      return;
    }
    if (shared_->dropped > 0) {
      const std::string words =
          "event=log-lines-dropped count=" + std::to_string(std::exchange(shared_->dropped, 0)) +
          " hint=\"whatever takes the log is slow\"";
      shared_->lines.emplace_back(
          spdlog::details::log_msg(message.logger_name, spdlog::level::warn, words));
    }
    shared_->lines.emplace_back(message);
  }
  shared_->wakes.notify_one();
}

bool LogQueue::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(shared_->mutex);
  return shared_->drained.wait_for(lock, limit,
                                   [this] { return shared_->lines.empty() && !shared_->writing; });
}

void LogQueue::run(const std::shared_ptr<Shared>& shared,
                   const std::shared_ptr<spdlog::sinks::sink>& out) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->wakes.wait(lock, [&] { return shared->stop || !shared->lines.empty(); });
    if (shared->lines.empty()) return;
    std::deque<spdlog::details::log_msg_buffer> lines;
    lines.swap(shared->lines);
    shared->writing = true;
    lock.unlock();
    std::size_t lost = 0;
    std::string why;
    for (const auto& line : lines) {
      try {
        out->log(line);
        out->flush();
      } catch (const std::exception& error) {  // the disk is full, say; the node goes on
        ++lost;
        why = error.what();
      }
    }
    if (lost > 0 && !shared->failing)
      std::fprintf(stderr, "gossipd: the log cannot be written, lines are lost: %s\n", why.c_str());
    lock.lock();
    shared->failing = lost > 0;
    shared->dropped += lost;
    shared->writing = false;
    if (shared->lines.empty()) shared->drained.notify_all();
  }
}

}  // namespace gossipd
