#include "models/devices/rank_threads.h"

namespace gossipd {

RankThreads::RankThreads(std::size_t ranks) : failures_(ranks) {
  for (std::size_t rank = 1; rank < ranks; ++rank)
    threads_.emplace_back([this, rank] { serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    begun_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::run(const std::function<void(std::size_t)>& work) {
  if (threads_.empty()) return work(0);
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    unfinished_ = threads_.size();
    ++round_;
    begun_.notify_all();
  }
  work_of(0);
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return unfinished_ == 0; });
  }
  std::exception_ptr first;
  std::size_t failed = 0;
  for (std::size_t rank = ranks(); rank-- > 0;)
    if (auto failure = std::exchange(failures_[rank], nullptr)) {
      first = std::move(failure);
      failed = rank;
    }
  if (!first) return;
  try {
    std::rethrow_exception(first);
  } catch (const std::exception& error) {
    throw RankFailure(failed, error.what(), first);
  }
}

void RankThreads::work_of(std::size_t rank) noexcept {
  try {
    (*work_)(rank);
  } catch (...) {
    failures_[rank] = std::current_exception();
  }
}

void RankThreads::serve(std::size_t rank) {
  std::uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begun_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    work_of(rank);
    const std::lock_guard lock(mutex_);
    if (--unfinished_ == 0) ended_.notify_all();
  }
}

}  // namespace gossipd
