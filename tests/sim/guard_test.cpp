// One node's bad value, bad step or lie, through real nodes: the others train on and the hurt node
// recovers.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "core/wire/turn.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t bad = 2;
constexpr float pull = 0.02f;
constexpr double noise = 0.02;

double rms_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t p = 0; p < a.size(); ++p)
    sum += std::pow(static_cast<double>(a[p]) - static_cast<double>(b[p]), 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Three nodes with gradients towards one target, and noise. `spoil` is what the bad one's steps do
// besides.
struct Training {
  explicit Training(std::function<void(std::span<float>, Step)> spoil, Hooks hooks = {},
                    std::size_t nodes = 3)
      : schema(schema_of({600, 2000})),
        target(random_model(schema.floats(), 1)),
        cluster(schema,
                [this, spoil = std::move(spoil)](std::size_t node, std::span<float> x, Step step) {
                  for (std::size_t p = 0; p < x.size(); ++p)
                    x[p] += pull * (target[p] - x[p]) +
                            static_cast<float>(noise * (random.uniform() - 0.5));
                  if (node == bad || cluster.size() == 1) spoil(x, step);
                }) {
    cluster.set_hooks(std::move(hooks));
    for (std::size_t i = 0; i < nodes; ++i) {
      NodeOptions options = with_model(schema, 0);
      if (i > 0) options.seeds = {0};
      cluster.add(options);
    }
  }
  [[nodiscard]] double furthest_healthy() {
    double most = 0;
    for (std::size_t i = 0; i < std::min(bad, cluster.size()); ++i)
      most = std::max(most, rms_distance(cluster.model(i), target));
    return most;
  }
  // The furthest that a healthy node gets from the target during `length`.
  double watch(Duration length) {
    double most = 0;
    (void)cluster.run_until(
        [&] {
          most = std::max(most, furthest_healthy());
          return false;
        },
        length);
    return most;
  }

  Random random{7};
  Schema schema;
  std::vector<float> target;
  VirtualCluster cluster;
};

const auto nothing = [](std::span<float>, Step) {};

// The distance that noise leaves between a model and the target without a bad node.
double undisturbed() {
  Training training(nothing);
  training.cluster.run_for(20s);
  return training.watch(20s);
}

}  // namespace

TEST_CASE("an undisturbed run takes no step back and cuts no transfer") {
  Training training(nothing);
  training.cluster.run_for(60s);
  for (std::size_t i = 0; i < 3; ++i) {
    const NodeView view = training.cluster.view(i);
    CHECK(view.steps_taken_back == 0);
    for (const LinkView& link : view.links) {
      CHECK(link.counters.transfers_clipped == 0);
      CHECK(link.counters.transfers_distrusted == 0);
      CHECK(link.counters.turns_heard > 50);
    }
  }
}

TEST_CASE(
    "one step that throws a model away reaches nobody, and its node goes on from where it was") {
  const double usual = undisturbed();
  for (const float thrown : {1e3f, 1e6f, 1e30f}) {
    CAPTURE(thrown);
    Training training([thrown](std::span<float> x, Step step) {
      if (step % 500 == 0) x[step % x.size()] += thrown;
    });
    training.cluster.run_for(4s);
    CHECK(training.watch(26s) < 1.5 * usual + 0.5);
    training.cluster.run_for(500ms);
    CHECK(training.furthest_healthy() < 1.5 * usual);
    CHECK(rms_distance(training.cluster.model(bad), training.target) < 1.5 * usual);
    CHECK(training.cluster.view(bad).steps_taken_back >= 3);
    CHECK(training.cluster.view(0).steps_taken_back == 0);
    CHECK(training.cluster.node(bad).phase() == Phase::training);
  }
}

TEST_CASE(
    "a node alone goes back to its former model, and rests longer and longer when every step is "
    "not finite") {
  Training once(
      [](std::span<float> x, Step step) {
        if (step == 500) x[3] = std::numeric_limits<float>::quiet_NaN();
      },
      {}, 1);
  once.cluster.run_for(10s);
  CHECK(once.cluster.view(0).steps_taken_back == 1);
  CHECK(once.cluster.node(0).phase() == Phase::training);
  CHECK(rms_distance(once.cluster.model(0), once.target) < 1);

  bool spoils = true;
  Training always(
      [&spoils](std::span<float> x, Step step) {
        if (spoils && step >= 500) x[3] = std::numeric_limits<float>::quiet_NaN();
      },
      {}, 1);
  always.cluster.run_for(600s);
  const std::uint64_t tries = always.cluster.view(0).steps_taken_back;
  std::printf("always not finite: %llu tries in ten minutes\n",
              static_cast<unsigned long long>(tries));
  CHECK(tries > 20);
  CHECK(tries < 200);
  spoils = false;
  REQUIRE(always.cluster.run_until(
      [&] {
        return always.cluster.node(0).phase() == Phase::training &&
               std::isfinite(always.cluster.model(0)[3]);
      },
      700s));
  always.cluster.run_for(20s);
  CHECK(rms_distance(always.cluster.model(0), always.target) < 1);
}

TEST_CASE("a node at rest without a link finds that its model is broken, and brings it back") {
  const Schema schema = schema_of({600, 2000});
  VirtualCluster cluster(schema, [](std::size_t, std::span<float> x, Step) { x[0] += 0.001f; });
  NodeOptions options = with_model(schema, 0);
  options.budget = 32 * 200;
  cluster.add(options);
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 60s));
  cluster.run_for(30s);
  const std::vector<float> trained(cluster.model(0).begin(), cluster.model(0).end());
  cluster.model(0)[3] = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(cluster.run_until([&] { return std::isfinite(cluster.model(0)[3]); }, 60s));
  CHECK(rms_distance(cluster.model(0), trained) == 0);
  CHECK(cluster.view(0).steps_taken_back == 1);
}

TEST_CASE(
    "a member that claims a huge weight and sends what is far away moves nobody, and its links "
    "rest") {
  const double usual = undisturbed();
  for (const float first : {1e6f, 100.0f, 3.0f}) {
    CAPTURE(first);
    const auto lies = std::make_shared<std::uint64_t>(0);
    Hooks hooks;
    hooks.snapshot = [lies, first](std::size_t node, Snapshot& snapshot) {
      if (node != bad || snapshot.step < 300) return;
      for (float& x : snapshot.model) x = first + 60.0f * static_cast<float>(*lies);
      ++*lies;
    };
    hooks.wire = [](std::size_t from, std::size_t, Lane lane, Bytes& message) {
      const float weight = 32;  // 1e9 is refused as bad_gain
      if (from == bad && lane == Lane::bulk && bulk_kind(message) == BulkKind::turn)
        std::memcpy(message.data() + turn_weight_offset, &weight, sizeof weight);
      return true;
    };
    Training training([](std::span<float>, Step) {}, std::move(hooks));
    training.cluster.options(bad).exchange.guard.step_jump = 0;
    training.cluster.kill(bad);
    training.cluster.restart(bad);  // with those options
    training.cluster.run_for(40s);
    REQUIRE(*lies > 10);
    std::printf("a liar from %g on: the healthy are %.4f away, %.4f undisturbed\n",
                static_cast<double>(first), training.watch(20s), usual);
    CHECK(training.watch(20s) < 1.5 * usual);
    std::uint64_t judged = 0;
    for (const LinkView& link : training.cluster.view(0).links)
      judged += link.counters.transfers_clipped;
    CHECK((judged > 0 || has_refusal(training.cluster.view(0), "quarantined", true)));
  }
}

TEST_CASE(
    "where every step explodes from the start, the log names the learning rate and a joiner still "
    "gets the model") {
  const Schema schema = schema_of({600, 2000});
  for (const float factor : {10.0f, std::numeric_limits<float>::infinity()}) {
    CAPTURE(factor);
    VirtualCluster cluster(schema, [factor](std::size_t, std::span<float> x, Step) {
      for (float& value : x) value *= factor;
    });
    cluster.learning_rate(0, 0.5);  // as at the schedule's end
    cluster.add(with_model(schema, 0));
    cluster.run_for(30s);
    const auto names_the_rate = [&] {
      return std::ranges::any_of(cluster.log(0), [](const std::string& line) {
        return line.find("the learning rate (0.5)") != std::string::npos &&
               line.find("too high") != std::string::npos;
      });
    };
    CHECK(cluster.run_until(names_the_rate, 120s));
    CHECK(cluster.view(0).trouble.find("optimizer.learning_rate") != std::string::npos);
    NodeOptions joiner;
    joiner.seeds = {0};
    cluster.add(joiner);
    const auto has_model = [&] {
      return std::ranges::any_of(cluster.log(1), [](const std::string& line) {
        return line.find("event=model-adopted") != std::string::npos;
      });
    };
    CHECK(cluster.run_until(has_model, 120s));
  }
}

TEST_CASE("a joiner is told that the only neighbour's training is broken") {
  const Schema schema = schema_of({600});
  VirtualCluster cluster(schema, [](std::size_t, std::span<float> x, Step) {
    x[3] = std::numeric_limits<float>::quiet_NaN();
  });
  cluster.add(with_model(schema, 0));
  cluster.run_for(60s);
  REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::broken; }, 60s));
  NodeOptions joiner;
  joiner.seeds = {0};
  cluster.add(joiner);
  CHECK(cluster.run_until(
      [&] { return cluster.view(1).waiting_for.find("is broken") != std::string::npos; }, 10s));
}

TEST_CASE("a broken node that leaves and joins again is broken still") {
  const Schema schema = schema_of({600});
  VirtualCluster cluster(schema, [](std::size_t, std::span<float> x, Step) {
    x[3] = std::numeric_limits<float>::quiet_NaN();
  });
  cluster.add(with_model(schema, 0));
  REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::broken; }, 120s));
  const std::size_t trained = times_logged(cluster, 0, "from=joining to=training");
  REQUIRE_FALSE(cluster.node(0).leave(cluster.now()));
  REQUIRE(cluster.run_until([&] { return cluster.node(0).phase() == Phase::left; }, 30s));
  REQUIRE_FALSE(cluster.node(0).join({}, cluster.now()));
  cluster.run_for(30s);
  CHECK(cluster.node(0).phase() == Phase::broken);
  CHECK(times_logged(cluster, 0, "from=joining to=training") == trained);
}

TEST_CASE("a weight that no minibatch can have is refused as a bad gain") {
  Training training(nothing);
  training.cluster.run_for(3s);
  training.cluster.tamper([](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    const float weight = 1e9f;
    if (from == bad && lane == Lane::bulk && bulk_kind(message) == BulkKind::turn)
      std::memcpy(message.data() + turn_weight_offset, &weight, sizeof weight);
    return true;
  });
  training.cluster.run_for(5s);
  std::uint64_t refused = 0;
  for (std::size_t i = 0; i < bad; ++i)
    for (const LinkView& link : training.cluster.view(i).links)
      refused += link.counters.refused[raw(Reject::bad_gain)];
  CHECK(refused > 0);
}

TEST_CASE("a link whose peer owes a turn for ten minutes is closed and opens again") {
  Training training(nothing);
  training.cluster.run_for(5s);
  bool drops = true;
  training.cluster.tamper([&drops](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    return !(drops && from == bad && lane == Lane::bulk && bulk_kind(message) == BulkKind::turn);
  });
  const auto heard = [&training] {
    std::uint64_t turns = 0;
    for (const LinkView& link : training.cluster.view(0).links)
      if (link.peer == training.cluster.id(bad)) turns = link.counters.turns_heard;
    return turns;
  };
  const auto is_closed = [&training] {
    return has_refusal(training.cluster.view(0), "turn-stalled", true);
  };
  training.cluster.run_for(595s);
  CHECK_FALSE(is_closed());
  REQUIRE(training.cluster.run_until(is_closed, 60s));
  drops = false;
  const std::uint64_t before = heard();
  CHECK(training.cluster.run_until([&] { return heard() > before + 5; }, 60s));
}

TEST_CASE("nor does a link wait longer for what its peer holds, once the session is back") {
  Training training(nothing);
  training.cluster.run_for(5s);
  bool drops = true;
  training.cluster.tamper([&drops](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    return !(drops && from == bad && lane == Lane::bulk &&
             bulk_kind(message) == BulkKind::replica_state);
  });
  training.cluster.cut_after(1);
  const auto is_closed = [&training] {
    return has_refusal(training.cluster.view(0), "turn-stalled", true);
  };
  training.cluster.run_for(595s);
  CHECK_FALSE(is_closed());
  REQUIRE(training.cluster.run_until(is_closed, 60s));
  drops = false;
  CHECK(training.cluster.run_until(
      [&] {
        for (const LinkView& link : training.cluster.view(0).links)
          if (link.peer == training.cluster.id(bad) && link.state == "open") return true;
        return false;
      },
      60s));
}

TEST_CASE("nothing is taken of a neighbour whose loss is far beyond the median") {
  Training training([](std::span<float> x, Step) {
    for (float& value : x) value += 0.01f;
  });
  for (std::size_t i = 0; i < 3; ++i) training.cluster.options(i).loss = i == bad ? 2.0 : 0.5;
  training.cluster.run_for(20s);
  std::uint64_t distrusted = 0, healthy = 0;
  for (std::size_t i = 0; i < bad; ++i)
    for (const LinkView& link : training.cluster.view(i).links) {
      if (link.peer == training.cluster.id(bad))
        distrusted += link.counters.transfers_distrusted;
      else
        healthy += link.counters.transfers_distrusted;
    }
  CHECK(healthy == 0);
  CHECK(distrusted > 20);
  CHECK(training.watch(20s) < 1.5 * undisturbed());
}

TEST_CASE("the final model takes nothing of a node whose loss is far beyond the median") {
  const Schema schema = schema_of({600, 2000});
  const std::vector<float> target = random_model(schema.floats(), 1);
  VirtualCluster cluster(schema, [&target](std::size_t node, std::span<float> x, Step) {
    for (std::size_t p = 0; p < x.size(); ++p)
      x[p] += node == bad ? 0.05f : pull * (target[p] - x[p]);
  });
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options = with_model(schema, 0);
    if (i > 0) options.seeds = {0};
    options.budget = 32 * 600 * 3;
    options.loss = i == bad ? 2.0 : 0.5;
    cluster.add(options);
  }
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(rms_distance(cluster.model(i), target) < 0.1);
    // `final` is written once the trainer has handed the model back.
    CHECK(cluster.run_until([&] { return cluster.final_distance_to_own(i) < 0.01; }, 1s));
  }
}
