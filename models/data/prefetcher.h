// models/data/prefetcher.h - makes the samples that come next ready before they are asked for, on
// threads of its own.
//
// Works in chunks of visits, not in batches: a batch may have another size at every step without
// anything being made twice. What comes out is what BatchSource makes without threads, bit for bit,
// whichever thread was faster. A position that does not follow the last one starts anew there. At
// most prefetch_samples_max samples or prefetch_bytes_max bytes are ready or under way. The threads
// start with the first take() and inherit its thread's priority.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "models/data/data_order.h"
#include "models/data/data_set.h"

namespace gossipd {

inline constexpr std::size_t prefetch_samples_max = 1024;
inline constexpr std::size_t prefetch_bytes_max = 256 << 20;
inline constexpr int prefetch_threads_max = 64;

class Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const DataSet> set, DataOrder order, int threads);
  ~Prefetcher();  // joins the threads; a sample under way is finished first
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Of which anybody may ask what never changes: shard_samples() and variation().
  [[nodiscard]] const DataOrder& order() const { return order_; }
  // The thread of take(). As DataOrder::restrict_to(); the next take() starts anew.
  void restrict_to(BucketSet buckets);
  // One thread. Waits for what is not ready yet. Returns the position after the last sample. Throws
  // what DataSet::write() threw, once the sample's turn has come.
  Samples take(Samples position, std::size_t samples, const Batch& batch);

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Chunk {
    std::vector<float> floats[2];  // inputs, targets; those of their element's type are used
    std::vector<std::int64_t> integers[2];
    std::vector<DataOrder::Visit> visits;
    bool ready = false;
    std::exception_ptr failure;
  };

  void start();
  void work();
  void restart(Samples position);
  void copy(const Chunk& chunk, std::size_t from, std::size_t count, const Batch& batch,
            std::size_t at) const;
  [[nodiscard]] Batch room_in(Chunk& chunk) const;

  const std::shared_ptr<const DataSet> set_;
  const int thread_count_;
  std::size_t chunk_samples_;
  std::vector<std::thread> threads_;
  // the position that would follow the last take(); no_position: none would
  Samples expected_ = 0;
  std::size_t taken_ = 0;  // of the chunk that take() reads next

  // guards everything below; a chunk under way belongs to its worker, a ready one to take()
  std::mutex mutex_;
  std::condition_variable chunk_ready_;
  std::condition_variable work_waits_;
  DataOrder order_;
  bool stop_ = false;
  Samples next_ = 0;           // where the next chunk begins
  std::uint64_t first_ = 0;    // chunk that take() reads next
  std::uint64_t claimed_ = 0;  // chunks handed to workers, from 0 on
  int under_way_ = 0;
  std::vector<Chunk> ring_;  // chunk c lies at c % size
};

}  // namespace gossipd
