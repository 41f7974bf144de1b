#include "tools/lab/pool.h"

#include <algorithm>

namespace gossipd::lab {

Pool::Pool(int threads, std::function<void()> prepare_thread)
    : prepare_(std::move(prepare_thread)) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { run(); });
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  wakes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::future<double> Pool::submit(std::function<double()> work) {
  std::packaged_task<double()> task(std::move(work));
  std::future<double> result = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wakes_.notify_one();
  return result;
}

void Pool::run() {
  if (prepare_) prepare_();
  std::unique_lock lock(mutex_);
  while (true) {
    wakes_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    std::packaged_task<double()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++busy_;
    lock.unlock();
    task();
    lock.lock();
    if (--busy_ == 0 && tasks_.empty()) idle_.notify_all();
  }
}

void Pool::settle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return busy_ == 0 && tasks_.empty(); });
}

}  // namespace gossipd::lab
