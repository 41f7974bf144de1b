// tests/unit/core_workers.h - Workers that begin their threads anew for each call, and take the
// pieces from the last one on.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "core/base/workers.h"

namespace gossipd {

class ManyThreads final : public Workers {
 public:
  explicit ManyThreads(std::size_t threads) : threads_(threads) {}
  [[nodiscard]] std::size_t threads() const override { return threads_; }
  void run(std::size_t count, const std::function<void(std::size_t)>& work) override {
    ++calls_;
    std::atomic<std::size_t> taken{0};
    const auto take = [&] {
      for (std::size_t i = taken++; i < count; i = taken++) work(count - 1 - i);
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads_; ++i) others.emplace_back(take);
    take();
    for (std::thread& other : others) other.join();
  }
  [[nodiscard]] std::size_t calls() const { return calls_; }

 private:
  const std::size_t threads_;
  std::size_t calls_ = 0;
};

}  // namespace gossipd
