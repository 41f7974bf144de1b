// daemon/disk/disk_writer.h - writes for the protocol thread, so that no disk makes it stand still.
//
// One thread of its own carries out one task after the other, in the order of asking, and says on
// the loop how each ended. A disk that takes seconds lets tasks wait, not the caller. Of states
// only the last counts: write_newest() replaces one of the same name that has not begun. All calls
// from the loop thread, which the writer does not outlive; tasks run on the writer's thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/base/result.h"
#include "daemon/disk/disk_view.h"
#include "net/event_loop.h"

namespace gossipd {

class DiskWriter {
 public:
  // Optional writes are dropped beyond this queue length. The pieces of a job's file are fewer.
  static constexpr std::size_t waiting_max = 2048;

  using Task = std::function<std::optional<Error>()>;
  using Done =
      std::function<void(const std::optional<Error>&)>;  // on the loop, once; empty: nobody asks

  // `refuses` is asked before each task: an error of it takes the task's place.
  explicit DiskWriter(EventLoop& loop, Task refuses = {});
  // Waits for the task under way, however long it takes; what has not begun is dropped.
  ~DiskWriter();
  DiskWriter(const DiskWriter&) = delete;
  DiskWriter& operator=(const DiskWriter&) = delete;

  // `what` names the file, for the words about a disk that is slow.
  void write(const std::string& what, Task task, Done done);
  // Instead of one of that name that waits: neither its task nor its `done` is called.
  void write_newest(const std::string& what, Task task, Done done);
  // When everything asked for so far has ended, and what replaces some of it.
  void after_all(std::function<void()> done);

  [[nodiscard]] DiskView view(Instant now) const;

 private:
  struct Item {
    std::string what;
    Task task;  // empty: only `done`
    Done done;
  };
  void add(Item item, bool newest);
  void run();

  EventLoop& loop_;
  const Task refuses_;
  mutable std::mutex mutex_;  // of all below but the thread
  std::condition_variable wakes_;
  std::deque<Item> waiting_;
  std::string writing_;  // empty: nothing is
  Instant began_{};
  Duration slowest_{};
  std::uint64_t written_ = 0, failed_ = 0, replaced_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace gossipd
