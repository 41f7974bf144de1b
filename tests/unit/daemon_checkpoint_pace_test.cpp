#include <doctest/doctest.h>

#include "daemon/checkpoint_pace.h"

using namespace gossipd;
using namespace std::chrono_literals;

namespace {

constexpr Instant start{1h};

Duration pause_after(Duration took, Duration every) {
  CheckpointPace pace(every);
  for (int round = 0; round < 20; ++round) pace.begin(start);
  pace.on_written(took);
  return pace.due() - start;
}

}  // namespace

TEST_CASE("pauses between checkpoints double from a second up to the one that is wanted") {
  CheckpointPace pace(5s);
  for (const Duration wanted : {1s, 2s, 4s, 5s, 5s}) {
    pace.begin(start);
    CHECK(pace.due() - start == wanted);
  }
}

TEST_CASE("writing takes a twentieth of the time, up to ten minutes or the pause that is wanted") {
  CHECK(pause_after(100ms, 30s) == 30s);
  CHECK(pause_after(5s, 30s) == 100s);
  for (const Duration took : {Duration(31s), Duration(8h), Duration::max()}) {
    CHECK(pause_after(took, 30s) == 10min);
    CHECK(pause_after(took, 1h) == 1h);
  }
}

TEST_CASE("a pause that one slow write made long ends earlier once a write is fast again") {
  CheckpointPace pace(30s);
  pace.begin(start);
  pace.on_written(25s);
  pace.begin(start);
  CHECK(pace.due() - start == 500s);
  pace.on_written(1s);
  CHECK(pace.due() - start == 20s);
}
