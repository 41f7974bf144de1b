// The daemon's threads for an exchange.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "models/devices/worker_pool.h"

using namespace gossipd;

TEST_CASE("a pool does every piece of every call once, whatever the number of its threads") {
  for (const std::size_t threads : {1u, 2u, 5u}) {
    CAPTURE(threads);
    WorkerPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const std::size_t count : {0u, 1u, 3u, 1000u}) {
      std::vector<std::uint32_t> done(count);
      for (std::uint32_t call = 1; call <= 20; ++call) {
        pool.run(count, [&](std::size_t i) { ++done[i]; });
        CHECK(done == std::vector<std::uint32_t>(count, call));
      }
    }
  }
}

TEST_CASE("the threads of a pool work at the same time") {
  WorkerPool pool(2);
  std::atomic<int> here{0};
  // Each of the two pieces ends only when the other has begun.
  pool.run(2, [&](std::size_t) {
    ++here;
    while (here < 2) std::this_thread::yield();
  });
  CHECK(here == 2);
}

TEST_CASE("without a number the machine decides on one thread to four") {
  CHECK(worker_threads(0) >= 1);
  CHECK(worker_threads(0) <= 4);
  CHECK(worker_threads(3) == 3);
  CHECK(worker_threads(1'000'000) == worker_threads_max);
}
