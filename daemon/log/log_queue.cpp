#include "daemon/log/log_queue.h"

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace gossipd {
namespace {

// Writes lines, and says how many were lost before the first one that can be written again.
class LineWriter {
 public:
  LineWriter(spdlog::sinks::sink& out, LogQueue::Render render)
      : out_(out), render_(std::move(render)) {}

  void write(const spdlog::details::log_msg& line) {
    if (!say_lost() || !put(line)) ++lost_;
  }
  // `count` lines were dropped after those written so far.
  void add_lost(std::size_t count) {
    lost_ += count;
    say_lost();
  }

 private:
  bool say_lost() {
    if (lost_ == 0) return true;
    const std::string words = "event=log-lines-dropped count=" + std::to_string(lost_) +
                              " hint=\"the log is full or what takes it is slow\"";
    if (!put(spdlog::details::log_msg("gossipd", spdlog::level::warn, words))) return false;
    lost_ = 0;
    return true;
  }

  bool put(const spdlog::details::log_msg& line) {
    try {
      const std::string_view words(line.payload.data(), line.payload.size());
      const std::string rendered = render_ ? render_(words) : std::string(words);
      spdlog::details::log_msg whole = line;
      whole.payload = spdlog::string_view_t(rendered.data(), rendered.size());
      out_.log(whole);
      out_.flush();
      failing_ = false;
    } catch (const std::exception& error) {  // the disk is full, say; the node goes on
      if (!std::exchange(failing_, true))
        std::fprintf(stderr, "gossipd: the log cannot be written, lines are lost: %s\n",
                     error.what());
    }
    return !failing_;
  }

  spdlog::sinks::sink& out_;
  LogQueue::Render render_;
  std::size_t lost_ = 0;
  bool failing_ = false;  // the last line could not be written
};

}  // namespace

LogQueue::LogQueue(std::shared_ptr<spdlog::sinks::sink> out, Render render)
    : out_(std::move(out)), thread_([shared = shared_, to = out_, render = std::move(render)] {
        run(shared, to, render);
      }) {}

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
                   const std::shared_ptr<spdlog::sinks::sink>& out, const Render& render) {
  LineWriter writer(*out, render);
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->wakes.wait(lock, [&] { return shared->stop || !shared->lines.empty(); });
    if (shared->lines.empty()) return;
    std::deque<spdlog::details::log_msg_buffer> lines;
    lines.swap(shared->lines);
    const std::size_t dropped = std::exchange(shared->dropped, 0);
    shared->writing = true;
    lock.unlock();
    for (const auto& line : lines) writer.write(line);
    if (dropped > 0) writer.add_lost(dropped);
    lock.lock();
    shared->writing = false;
    if (shared->lines.empty()) shared->drained.notify_all();
  }
}

}  // namespace gossipd
