// models/devices/rank_threads.h - a thread for each rank, that is for each device of a node with
// several.
//
// run() does one piece of work on all ranks at once and returns when every rank has ended it, so a
// rank that fails cannot leave another one waiting in a later piece. Rank 0 is the caller itself:
// with one rank there is no thread and exceptions pass as they are. One caller at a time. Plain
// C++, so that ThreadSanitizer can watch it.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gossipd {

// The first rank that failed, and why.
class RankFailure : public std::runtime_error {
 public:
  RankFailure(std::size_t rank, const std::string& what, std::exception_ptr cause)
      : std::runtime_error(what), rank_(rank), cause_(std::move(cause)) {}
  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] const std::exception_ptr& cause() const { return cause_; }  // as the rank threw it

 private:
  std::size_t rank_;
  std::exception_ptr cause_;
};

class RankThreads {
 public:
  explicit RankThreads(std::size_t ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  [[nodiscard]] std::size_t ranks() const { return failures_.size(); }
  // Throws RankFailure when all have ended and one has thrown.
  void run(const std::function<void(std::size_t rank)>& work);

 private:
  void serve(std::size_t rank);
  void work_of(std::size_t rank) noexcept;

  // guards work_, round_, unfinished_ and stop_; failures_ belong to their ranks during a round
  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable ended_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::uint64_t round_ = 0;
  std::size_t unfinished_ = 0;
  bool stop_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;  // of ranks 1 …
};

}  // namespace gossipd
