#include "models/devices/worker_pool.h"

#include <algorithm>

namespace gossipd {

std::size_t worker_threads(std::size_t wanted) {
  if (wanted > 0) return std::min(wanted, worker_threads_max);
  return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 4, 1, 4);
}

WorkerPool::WorkerPool(std::size_t threads) {
  for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this] { wait_for_work(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wakes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// A thread that wakes too late finds no work and is not waited for.
void WorkerPool::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    ++call_;
  }
  wakes_.notify_all();
  for (std::size_t i = next_++; i < count; i = next_++) work(i);
  std::unique_lock lock(mutex_);
  work_ = nullptr;
  done_.wait(lock, [this] { return running_ == 0; });
}

void WorkerPool::wait_for_work() {
  std::unique_lock lock(mutex_);
  for (std::uint64_t taken = 0;;) {
    wakes_.wait(lock, [&] { return stopping_ || (work_ != nullptr && call_ != taken); });
    if (stopping_) return;
    taken = call_;
    const auto& work = *work_;
    const std::size_t count = count_;
    ++running_;
    lock.unlock();
    for (std::size_t i = next_++; i < count; i = next_++) work(i);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace gossipd
