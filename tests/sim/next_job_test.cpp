// From one job of a cluster to the next.
#include <algorithm>

#include "core/wire/control.h"
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
    first = summary(0).job;
  }
  [[nodiscard]] NodeSummary summary(std::size_t i) {
    return cluster.node(i).summary(cluster.now());
  }
  [[nodiscard]] bool is_on(std::size_t i, std::uint64_t generation) {
    return cluster.alive(i) && summary(i).generation == generation;
  }
  // All members, but one that is down, finish the same job, which is another than the first.
  [[nodiscard]] bool all_finish(std::uint64_t generation, std::optional<std::size_t> but = {}) {
    return cluster.run_until(
        [&] {
          for (std::size_t i = 0; i < cluster.size(); ++i) {
            if (i == but) continue;
            if (!is_on(i, generation)) return false;  // or it starts again
            if (summary(i).job == first || summary(i).phase != Phase::finished) return false;
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
  REQUIRE_FALSE(f.cluster.start_job(0, "third"));
  REQUIRE(f.all_finish(3));
  f.check_samples();
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

TEST_CASE("a member that has missed several jobs goes on to the last one") {
  Finished f(3);
  f.cluster.kill(0);
  REQUIRE_FALSE(f.cluster.start_job(2, "second"));
  REQUIRE(f.all_finish(2, 0));
  REQUIRE_FALSE(f.cluster.start_job(1, "third"));
  REQUIRE(f.all_finish(3, 0));
  f.cluster.start_from_disk(0);
  REQUIRE(f.all_finish(3));
  f.check_samples();
}

TEST_CASE("who started a job may be lost for good as soon as one member knows of it") {
  Finished f(4);
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  REQUIRE(f.cluster.run_until([&] { return f.is_on(1, 2); }, 60s));
  f.cluster.kill(0, VirtualCluster::Death::power_lost);
  REQUIRE(f.all_finish(2, 0));
}

TEST_CASE("who dies before its disk has the next job has told nobody, and goes on as before") {
  Finished f(3);
  f.cluster.slow_disk(0, 2s);
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  f.cluster.run_for(1s);
  f.cluster.kill(0);
  f.cluster.slow_disk(0, 0s);
  f.cluster.start_from_disk(0);
  f.cluster.run_for(30s);
  for (std::size_t i = 0; i < 3; ++i) CHECK(f.is_on(i, 1));
}

TEST_CASE("a joiner that hears of the next job first takes no offer of the one before") {
  Finished f(2);
  VirtualCluster& cluster = f.cluster;
  bool asked = false;
  Hooks hooks;
  hooks.wire = [&](std::size_t from, std::size_t to, Lane lane, Bytes& message) {
    if (lane != Lane::control) return true;
    const Result<Control> control = decode_control(message);
    if (!control) return true;
    if (from == 2 && to == 1 && std::holds_alternative<JobRequest>(*control))
      asked = cluster.network().way(1, 2).held = true;
    return from != 0 || to != 2 || !std::holds_alternative<JobOffer>(*control);
  };
  cluster.set_hooks(std::move(hooks));
  NodeOptions joiner;
  joiner.seeds = {0, 1};
  joiner.knows_job = false;
  joiner.budget = budget;
  cluster.add(joiner);
  REQUIRE(cluster.run_until([&] { return asked; }, 60s));
  cluster.run_for(1s);
  REQUIRE_FALSE(cluster.start_job(0, "second"));
  REQUIRE(cluster.run_until([&] { return times_logged(cluster, 2, "event=next-job ") > 0; }, 60s));
  cluster.run_for(10ms);  // the next job is on its disk, and it tells node 1 before it restarts
  REQUIRE(f.is_on(2, 1));
  cluster.network().release(1, 2);
  CHECK(f.all_finish(2));
  f.check_samples();
}

TEST_CASE("a disk that fails keeps a member with its job until it can go on") {
  Finished f(3);
  f.cluster.fail_disk(1, true);
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  REQUIRE(f.all_finish(2, 1));
  CHECK(f.is_on(1, 1));
  f.cluster.fail_disk(1, false);
  REQUIRE(f.all_finish(2));
  f.check_samples();
}

TEST_CASE("a node on a copied disk takes another id, and stays with the job of that disk") {
  Finished f(3);
  REQUIRE_FALSE(f.cluster.start_job(2, "second"));
  REQUIRE(f.all_finish(2));
  const auto heard = [&] {
    return std::ranges::count_if(f.cluster.log(0), [](const std::string& line) {
      return line.starts_with("event=next-job-heard");
    });
  };
  const auto before = heard();
  f.cluster.kill(0);
  f.cluster.whole_disk(0) = f.cluster.whole_disk(1);
  f.cluster.start_from_disk(0);
  REQUIRE(f.cluster.run_until(
      [&] { return f.cluster.alive(0) && f.cluster.id(0) != f.cluster.id(1); }, 60s));
  CHECK(f.is_on(0, 2));
  REQUIRE(f.all_finish(2));
  CHECK(heard() == before);
  f.check_samples();
}

TEST_CASE("a member that went on to another job and left is known to have left") {
  Finished f(2);
  f.cluster.kill(1);
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  REQUIRE(f.cluster.run_until([&] { return f.is_on(0, 2); }, 60s));
  REQUIRE_FALSE(f.cluster.node(0).leave(f.cluster.now()));
  REQUIRE(f.cluster.run_until([&] { return f.cluster.node(0).phase() == Phase::left; }, 60s));
  f.cluster.start_from_disk(1);
  REQUIRE(f.cluster.run_until(
      [&] { return member(f.cluster.view(1), f.cluster.id(0))->record.state == MemberState::left; },
      60s));
}

TEST_CASE(
    "who joins by a member that left during the job before brings none of that job's budget") {
  Finished f(3);
  f.cluster.act(0,
                [](Node& node, Instant now) { REQUIRE_FALSE(node.extend_budget(32 * 50, now)); });
  REQUIRE(f.cluster.run_until(
      [&] {
        for (std::size_t i = 0; i < 3; ++i)
          if (f.cluster.view(i).budget_samples <= budget) return false;
        return all_in(f.cluster, Phase::finished);
      },
      300s));
  REQUIRE_FALSE(f.cluster.node(2).leave(f.cluster.now()));
  REQUIRE(f.cluster.run_until([&] { return f.cluster.node(2).phase() == Phase::left; }, 60s));
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  REQUIRE(f.cluster.run_until([&] { return f.is_on(0, 2) && f.is_on(1, 2); }, 60s));
  NodeOptions late = short_job(f.schema, 3);
  late.seeds = {2};  // which names the others
  late.knows_job = false;
  late.start.clear();
  f.cluster.add(late);
  REQUIRE(f.cluster.run_until([&] { return f.is_on(3, 2); }, 60s));
  f.cluster.run_for(1s);
  for (const std::size_t i : {0u, 1u, 3u}) CHECK(f.cluster.view(i).budget_samples == budget);
}

TEST_CASE(
    "nor does its trainer hear of that job's samples and budget, where it knows the new job") {
  Finished f(2);
  f.cluster.act(0,
                [](Node& node, Instant now) { REQUIRE_FALSE(node.extend_budget(32 * 900, now)); });
  REQUIRE(f.cluster.run_until(
      [&] {
        return f.cluster.view(1).budget_samples > 2 * budget && all_in(f.cluster, Phase::finished);
      },
      300s));
  REQUIRE_FALSE(f.cluster.node(1).leave(f.cluster.now()));
  REQUIRE(f.cluster.run_until([&] { return f.cluster.node(1).phase() == Phase::left; }, 60s));
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  REQUIRE(f.cluster.run_until([&] { return f.is_on(0, 2); }, 60s));
  Samples others = 0, told = 0;
  Hooks hooks;
  hooks.effects = [&](std::size_t node, std::vector<Effect>& effects) {
    if (node != 2) return;
    for (const Effect& effect : effects) {
      if (const auto* progress = std::get_if<ProgressEffect>(&effect))
        others = std::max(others, progress->others_samples);
      if (const auto* said = std::get_if<BudgetEffect>(&effect))
        told = std::max(told, said->samples);
    }
  };
  f.cluster.set_hooks(std::move(hooks));
  NodeOptions late = short_job(f.schema, 2);
  late.seeds = {1};  // which names the others
  late.start.clear();
  f.cluster.whole_disk(f.cluster.add_off(late)).job_document = "second";
  f.cluster.power_on(2);
  REQUIRE(f.cluster.run_until([&] { return f.is_on(2, 2); }, 60s));
  f.cluster.run_for(2s);
  CHECK(others < budget + budget / 2);
  CHECK(told <= budget);
}

TEST_CASE("a job that is not finished, or is the present one, is not followed") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  cluster.add(with_model(schema, 0));
  cluster.run_for(1s);
  CHECK(cluster.start_job(0, "second")->code == "job-running");
  NodeOptions lonely = with_model(schema, 1);
  lonely.seeds = {2};
  lonely.knows_job = false;
  cluster.add(lonely);
  (void)cluster.add_off(with_model(schema, 2));
  CHECK(cluster.start_job(1, "second")->code == "no-job");
  Finished f(1);
  CHECK(f.cluster.start_job(0, "job")->code == "same-job");
  REQUIRE_FALSE(f.cluster.start_job(0, "second"));
  CHECK(f.cluster.start_job(0, "third")->code == "job-starting");
  CHECK(f.cluster.node(0).leave(f.cluster.now())->code == "job-starting");
  CHECK(f.cluster.node(0).extend_budget(32, f.cluster.now())->code == "job-starting");
  REQUIRE(f.all_finish(2));
}
