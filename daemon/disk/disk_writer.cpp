#include "daemon/disk/disk_writer.h"

#include <algorithm>
#include <utility>

namespace gossipd {

DiskWriter::DiskWriter(EventLoop& loop, Task refuses)
    : loop_(loop), refuses_(std::move(refuses)), thread_([this] { run(); }) {}

DiskWriter::~DiskWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wakes_.notify_all();
  thread_.join();
}

void DiskWriter::write(const std::string& what, Task task, Done done) {
  add(Item{what, std::move(task), std::move(done)}, false);
}

void DiskWriter::write_newest(const std::string& what, Task task, Done done) {
  add(Item{what, std::move(task), std::move(done)}, true);
}

void DiskWriter::after_all(std::function<void()> done) {
  add(Item{"", {}, [done = std::move(done)](const std::optional<Error>&) { done(); }}, false);
}

void DiskWriter::add(Item item, bool newest) {
  {
    const std::lock_guard lock(mutex_);
    const auto replaced =
        newest ? std::ranges::find(waiting_, item.what, &Item::what) : waiting_.end();
    if (replaced == waiting_.end()) {
      waiting_.push_back(std::move(item));
    } else {
      ++replaced_;
      // Who waits for what is replaced waits for what replaces it.
      const auto behind = waiting_.erase(replaced);
      const auto told_later = std::stable_partition(
          behind, waiting_.end(), [](const Item& other) { return other.task != nullptr; });
      waiting_.insert(told_later, std::move(item));
    }
  }
  wakes_.notify_all();
}

void DiskWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wakes_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = item.what;
    began_ = EventLoop::now();
    lock.unlock();
    std::optional<Error> error;
    if (item.task && refuses_) error = refuses_();
    if (item.task && !error) error = item.task();
    lock.lock();
    writing_.clear();
    if (item.task) {
      slowest_ = std::max(slowest_, EventLoop::now() - began_);
      ++(error ? failed_ : written_);
    }
    if (item.done) loop_.post([done = std::move(item.done), error] { done(error); });
  }
}

bool takes_long(const DiskView& disk) {
  return disk.writing_s >= disk_slow_after_s || disk.checkpoint_s >= checkpoint_slow_after_s;
}

DiskView DiskWriter::view(Instant now) const {
  const std::lock_guard lock(mutex_);
  DiskView view;
  view.writing = writing_;
  view.writing_s = writing_.empty() ? 0 : seconds(std::max(now - began_, Duration{}));
  view.slowest_s = std::max(seconds(slowest_), view.writing_s);
  view.waiting = waiting_.size();
  view.written = written_;
  view.failed = failed_;
  view.replaced = replaced_;
  return view;
}

}  // namespace gossipd
