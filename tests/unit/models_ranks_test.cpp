// What several devices and fp16 need without a tensor library: a thread for each rank, the names of
// devices, the loss scale.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "models/descent/loss_scale.h"
#include "models/devices/device_failure.h"
#include "models/devices/device_names.h"
#include "models/devices/rank_threads.h"
#include "models/files/data_file.h"

using namespace gossipd;

TEST_CASE("Every rank works once a round, on a thread of its own, and rank 0 on the caller's") {
  RankThreads threads(3);
  std::vector<int> rounds(3);
  std::vector<std::thread::id> ids(3);
  for (int round = 0; round < 200; ++round)
    threads.run([&](std::size_t rank) {
      ++rounds[rank];
      ids[rank] = std::this_thread::get_id();
    });
  CHECK(rounds == std::vector<int>{200, 200, 200});
  CHECK(ids[0] == std::this_thread::get_id());
  CHECK(ids[1] != ids[0]);
  CHECK(ids[2] != ids[1]);
}

TEST_CASE("All ranks work at the same time") {
  RankThreads threads(3);
  std::atomic<int> arrived{0};
  threads.run([&](std::size_t) {
    ++arrived;
    while (arrived.load() < 3) std::this_thread::yield();
  });
  CHECK(arrived.load() == 3);
}

TEST_CASE(
    "Where ranks fail the first is named, all others end their work, and the next round is whole") {
  RankThreads threads(4);
  std::vector<int> ended(4);
  const auto work = [&](std::size_t rank) {
    if (rank == 1 || rank == 2) throw std::runtime_error("rank " + std::to_string(rank) + " broke");
    ++ended[rank];
  };
  try {
    threads.run(work);
    FAIL("no failure came");
  } catch (const RankFailure& failure) {
    CHECK(failure.rank() == 1);
    CHECK(std::string(failure.what()) == "rank 1 broke");
  }
  CHECK(ended == std::vector<int>{1, 0, 0, 1});
  threads.run([&](std::size_t rank) { ++ended[rank]; });
  CHECK(ended == std::vector<int>{2, 1, 1, 2});
}

TEST_CASE("A failure of a rank stays the kind that it is, and only a file's lies with no rank") {
  RankThreads threads(2);
  const auto failed_by = [&](const auto& failure) {
    try {
      threads.run([&](std::size_t rank) {
        if (rank == 1) throw failure;
      });
    } catch (const RankFailure& of_rank) {
      rethrow_for_node(of_rank, "cuda:1");
    }
  };
  CHECK_THROWS_WITH_AS(failed_by(DataError("a.idx: ends before byte 7")),
                       "a.idx: ends before byte 7", DataError);
  CHECK_THROWS_WITH_AS(failed_by(OutOfMemory("cuda:1: no room")),
                       "rank 1 (cuda:1): cuda:1: no room", OutOfMemory);
  CHECK_THROWS_WITH_AS(failed_by(std::invalid_argument("broke")), "rank 1 (cuda:1): broke",
                       std::runtime_error);
  for (const auto memory : {OutOfMemory::Memory::device, OutOfMemory::Memory::main}) try {
      failed_by(OutOfMemory("no room", memory));
    } catch (const OutOfMemory& error) {
      CHECK(error.memory() == memory);
    }
}

TEST_CASE("What a single rank throws arrives as it is") {
  RankThreads threads(1);
  CHECK_THROWS_AS(threads.run([](std::size_t) { throw std::invalid_argument("as it is"); }),
                  std::invalid_argument);
}

TEST_CASE("Lists of devices are taken apart as they are written") {
  CHECK(*split_devices("cuda:all") == std::vector<std::string>{"cuda:all"});
  CHECK(*split_devices("cuda:0,cuda:12") == std::vector<std::string>{"cuda:0", "cuda:12"});
  CHECK(*split_devices("cpu,cpu") == std::vector<std::string>{"cpu", "cpu"});
  for (const char* wrong : {"", ",", "cpu, cpu", "cuda:all,cuda:1", "cuda,cuda:0", "cuda:1,cuda:01",
                            "cuda:1000", "cuda:-1", "cpu,cuda"})
    CHECK_MESSAGE(!split_devices(wrong), wrong);
  CHECK(cuda_index("cuda") == 0);
  CHECK(cuda_index("cuda:7") == 7);
  CHECK(cuda_index("cpu") == -1);
}

TEST_CASE(
    "A loss scale falls by half with every overflow, and doubles after many steps without one") {
  LossScale scale;
  CHECK(scale.value() == 65536);
  scale.saw(false);
  CHECK(scale.value() == 32768);
  for (int i = 0; i < LossScale::steps_until_growth - 1; ++i) scale.saw(true);
  CHECK(scale.value() == 32768);
  scale.saw(true);
  CHECK(scale.value() == 65536);
  for (int i = 0; i < LossScale::steps_until_growth - 1; ++i) scale.saw(true);
  scale.saw(false);
  scale.saw(true);  // counts from the overflow on
  CHECK(scale.value() == 32768);
  for (int i = 0; i < 100; ++i) scale.saw(false);
  CHECK(scale.value() == 1);
}

TEST_CASE(
    "A loss scale goes on from where a checkpoint says that it stood, and from nowhere else") {
  LossScale scale;
  scale.saw(false);
  for (int i = 0; i < LossScale::steps_until_growth - 1; ++i) scale.saw(true);
  auto again = LossScale::at(scale.value(), scale.good_steps());
  REQUIRE(again);
  CHECK(*again == scale);
  again->saw(true);
  CHECK(again->value() == 65536);
  CHECK(LossScale::at(1, 0));
  CHECK(LossScale::at(16777216, LossScale::steps_until_growth - 1));
  for (const double wrong :
       {0.0, 0.5, 3.0, -2.0, 33554432.0, std::numeric_limits<double>::infinity(), std::nan("")})
    CHECK_MESSAGE(!LossScale::at(wrong, 0), wrong);
  for (const int wrong : {-1, LossScale::steps_until_growth})
    CHECK_MESSAGE(!LossScale::at(65536, wrong), wrong);
}
