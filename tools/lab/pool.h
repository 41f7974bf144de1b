// tools/lab/pool.h - a few threads that compute losses and gradients.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace gossipd::lab {

class Pool {
 public:
  explicit Pool(int threads, std::function<void()> prepare_thread = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  std::future<double> submit(std::function<double()> work);
  void settle();  // returns when nothing waits or runs

 private:
  void run();
  std::function<void()> prepare_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<std::packaged_task<double()>> tasks_;
  bool stop_ = false;
  std::size_t busy_ = 0;
  std::condition_variable idle_;
  std::vector<std::thread> threads_;
};

}  // namespace gossipd::lab
