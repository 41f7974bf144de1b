// models/devices/worker_pool.h - the daemon's Workers: threads that wait for a piece of work on
// blocks.
//
// run() wakes them, takes part itself and returns when all is done; between two calls they sleep.
// The threads begin and end with the pool. One caller at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/workers.h"

namespace gossipd {

inline constexpr std::size_t worker_threads_max = 64;

// For 0, that is by the machine: a quarter of its processors, at most 4, since the training wants
// them as well. 1: no pool is needed.
[[nodiscard]] std::size_t worker_threads(std::size_t wanted);

class WorkerPool final : public Workers {
 public:
  explicit WorkerPool(std::size_t threads);  // the caller's included
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] std::size_t threads() const override { return threads_.size() + 1; }
  void run(std::size_t count, const std::function<void(std::size_t)>& work) override;

 private:
  void wait_for_work();

  std::mutex mutex_;  // guards all that is no atomic
  std::condition_variable wakes_, done_;
  const std::function<void(std::size_t)>* work_ = nullptr;  // null: there is none
  std::size_t count_ = 0;
  std::uint64_t call_ = 0;   // of run(): a thread takes part at most once in each
  std::size_t running_ = 0;  // threads that take part
  bool stopping_ = false;
  std::atomic<std::size_t> next_{0};  // piece
  std::vector<std::thread> threads_;  // last: they use all of this
};

}  // namespace gossipd
