// From one job of a cluster to the next.
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr Samples budget = 32 * 300;

NodeOptions short_job(const Schema& schema, std::size_t index) {
  NodeOptions options = with_model(schema, index);
  options.budget = budget;
  return options;
}

struct Finished {
  explicit Finished(std::size_t members) {
    for (std::size_t i = 0; i < members; ++i) cluster.add(short_job(schema, i));
    REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 300s));
    first = cluster.node(0).summary(cluster.now()).job;
  }
  [[nodiscard]] NodeSummary summary(std::size_t i) {
    return cluster.node(i).summary(cluster.now());
  }
  // All members, but one that is down, finish the same job, which is another than the first.
  [[nodiscard]] bool all_finish(std::uint64_t generation, std::optional<std::size_t> but = {}) {
    return cluster.run_until(
        [&] {
          for (std::size_t i = 0; i < cluster.size(); ++i) {
            if (i == but) continue;
            if (!cluster.alive(i)) return false;  // it starts again
            const NodeSummary node = summary(i);
            if (node.generation != generation || node.job == first || node.phase != Phase::finished)
              return false;
          }
          return true;
        },
        600s);
  }
  // No more than one overshoot beyond the budget: nothing of the job before has been counted.
  void check_samples() {
    for (std::size_t i = 0; i < cluster.size(); ++i) {
      CHECK(summary(i).cluster_samples >= budget);
      CHECK(summary(i).cluster_samples < budget + budget / 2);
    }
  }

  const Schema schema = schema_of({100});
  VirtualCluster cluster{schema};
  JobHash first{};
};

}  // namespace

TEST_CASE("the next job starts on any member, spreads to all, and counts nothing of the first") {
  Finished f(4);
  REQUIRE_FALSE(f.cluster.start_job(2, "second"));
  REQUIRE(f.all_finish(2));
  f.check_samples();
  for (std::size_t i = 0; i < 4; ++i) CHECK_FALSE(f.cluster.whole_disk(i).former_finals.empty());
}

TEST_CASE("of two jobs started at once all end with the same one") {
  Finished f(4);
  REQUIRE_FALSE(f.cluster.start_job(1, "second"));
  REQUIRE_FALSE(f.cluster.start_job(3, "another"));
  REQUIRE(f.all_finish(2));
  for (std::size_t i = 1; i < 4; ++i) CHECK(f.summary(i).job == f.summary(0).job);
  f.check_samples();
}

TEST_CASE("a member that is down when the next job starts goes on to it when it is back") {
  Finished f(4);
  f.cluster.kill(0);
  REQUIRE_FALSE(f.cluster.start_job(2, "second"));
  REQUIRE(f.all_finish(2, 0));
  f.cluster.start_from_disk(0);
  REQUIRE(f.all_finish(2));
  f.check_samples();
}
