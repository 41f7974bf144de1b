// What the exchange does to the models: consensus, the mean, a node alone, a joiner.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

double movement(const std::vector<double>& before, const std::vector<double>& after) {
  double sum = 0;
  for (std::size_t i = 0; i < before.size(); ++i) sum += std::pow(after[i] - before[i], 2);
  return std::sqrt(sum / static_cast<double>(before.size()));
}

struct Outcome {
  // the last relative to the initial consensus distance
  double initial_distance = 0, final_distance = 0, mean_moved = 0;
  std::uint64_t checks = 0;
};

// Node `i` of some that meet with different models, as equals: the plain mean is what must be kept.
NodeOptions equal(std::size_t i, const Schema& schema, Codec codec) {
  NodeOptions options;
  if (i > 0) options.seeds = {0};
  options.start = random_model(schema.floats(), 100 + i);
  options.exchange.codec = codec;
  options.exchange.threshold = 1e-6;
  options.exchange.joiner_weight = 1;
  options.exchange.joiner_steps = 0;
  return options;
}

Outcome reach_consensus(std::size_t count, std::vector<Duration> step_times, Codec codec,
                        const Schema& schema, Duration latency = 1ms, double target = 1e-4,
                        std::vector<ReplicaFormat> replicas = {ReplicaFormat::fp32}) {
  VirtualCluster cluster(schema);
  cluster.set_latency(latency);
  for (std::size_t i = 0; i < count; ++i) {
    NodeOptions options = equal(i, schema, codec);
    options.step_time = step_times[i % step_times.size()];
    options.exchange.replicas = replicas[i % replicas.size()];
    cluster.add(options);
  }
  Outcome outcome;
  const auto mean = cluster.mean();
  outcome.initial_distance = cluster.consensus_distance();
  cluster.run_until(
      [&] { return cluster.consensus_distance() < target * outcome.initial_distance; }, 300s);
  cluster.run_for(1s);  // transfers of which one half is still on the way arrive
  outcome.final_distance = cluster.consensus_distance();
  outcome.mean_moved = movement(mean, cluster.mean()) / outcome.initial_distance;
  outcome.checks = cluster.replica_checks();
  return outcome;
}

}  // namespace

TEST_CASE("nodes that start from different models reach consensus in lock-step and keep the mean") {
  const Schema schema = schema_of({300, 2000, 64});
  for (const std::size_t count : {2u, 3u, 8u}) {
    for (const Codec codec :
         {Codec{CodecId::fp32, 0}, Codec{CodecId::int8, 0}, Codec{CodecId::int4, 0}}) {
      CAPTURE(count);
      const std::string name = to_string(codec.id);
      CAPTURE(name);
      const Outcome outcome = reach_consensus(count, {10ms}, codec, schema);
      std::printf(
          "lock-step: nodes=%zu codec=%s consensus distance %.4f -> %.6f mean moved %.2e of the "
          "initial "
          "consensus distance, %llu replica checks\n",
          count, to_string(codec.id), outcome.initial_distance, outcome.final_distance,
          outcome.mean_moved, static_cast<unsigned long long>(outcome.checks));
      CHECK(outcome.final_distance <= 1e-4 * outcome.initial_distance);
      CHECK(outcome.mean_moved < 3e-7);
      CHECK(outcome.checks > 2);
    }
  }
}

TEST_CASE("unequal speeds and delays do not move the mean beyond a hundredth of a per cent") {
  const Schema schema = schema_of({300, 2000});
  struct Case {
    const char* name;
    std::vector<Duration> steps;
    Duration latency;
  };
  for (const Case& c : {Case{"equal speeds, not in step", {10ms, 10100us, 9900us, 10050us}, 3ms},
                        Case{"speeds 1:4", {10ms, 40ms}, 3ms},
                        Case{"speeds 1:4, 100 ms apart", {10ms, 40ms}, 100ms}}) {
    CAPTURE(c.name);
    const Outcome outcome =
        reach_consensus(4, c.steps, Codec{CodecId::int8, 0}, schema, c.latency, 2e-3);
    std::printf(
        "asynchronous: %s: consensus distance %.4f -> %.6f, mean moved %.3f %% of the initial "
        "consensus distance\n",
        c.name, outcome.initial_distance, outcome.final_distance, 100 * outcome.mean_moved);
    CHECK(outcome.final_distance < 2e-3 * outcome.initial_distance);
    CHECK(outcome.mean_moved < 1e-4);
  }
}

TEST_CASE("a model of 17 blocks reaches consensus with the sparse codec") {
  const Schema schema = schema_of(
      {block_floats_max + 5, 10, 700, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64});
  CHECK(schema.blocks().size() == 17);
  const Outcome outcome = reach_consensus(3, {10ms}, Codec{CodecId::top_k, 128}, schema, 1ms, 2e-3);
  std::printf("17 blocks, top_k: consensus distance %.4f -> %.6f, mean moved %.2e\n",
              outcome.initial_distance, outcome.final_distance, outcome.mean_moved);
  CHECK(outcome.final_distance < 2e-3 * outcome.initial_distance);
  CHECK(outcome.mean_moved < 1e-3);
}

TEST_CASE(
    "replicas in bf16 are the same bits at both ends, keep the mean, and bring models as close as "
    "bf16 can tell") {
  const Schema schema = schema_of({300, 2000, 64});
  for (const Codec codec :
       {Codec{CodecId::fp32, 0}, Codec{CodecId::bf16, 0}, Codec{CodecId::int8, 0},
        Codec{CodecId::int4, 0}, Codec{CodecId::top_k, 128}}) {
    const std::string name = to_string(codec.id);
    CAPTURE(name);
    const Outcome outcome =
        reach_consensus(3, {10ms, 10100us}, codec, schema, 1ms, 3e-3, {ReplicaFormat::bf16});
    std::printf(
        "bf16 replicas: codec=%s consensus distance %.4f -> %.6f mean moved %.2e, %llu replica "
        "checks\n",
        name.c_str(), outcome.initial_distance, outcome.final_distance, outcome.mean_moved,
        static_cast<unsigned long long>(outcome.checks));
    CHECK(outcome.final_distance < 3e-3 * outcome.initial_distance);
    CHECK(outcome.mean_moved < 1e-3);
    CHECK(outcome.checks > 2);
  }
}

// In bf16 what is next to 100 is 100.5, so 100.2 cannot be told; 0.2 over the 127 steps of int8 is
// more than all of the small values.
TEST_CASE(
    "a difference that bf16 cannot hold does not hide smaller ones, and what is said comes to an "
    "end") {
  const Schema schema = schema_of({1000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) {
    NodeOptions options;
    if (i > 0) options.seeds = {0};
    options.start = random_model(schema.floats(), 100 + i);
    for (float& x : options.start) x *= 1e-3f;
    options.start[0] = i == 0 ? 100.0f : 100.2f;
    options.exchange.codec = Codec{CodecId::int8, 0};
    options.exchange.threshold = 1e-9;
    options.exchange.replicas = ReplicaFormat::bf16;
    cluster.add(options);
  }
  cluster.run_for(60s);
  const auto deltas = [&](std::size_t node) {
    return cluster.view(node).links.at(0).counters.deltas_sent;
  };
  const std::uint64_t before[] = {deltas(0), deltas(1)};
  const std::span<const float> a = cluster.model(0), b = cluster.model(1);
  double apart = 0;
  for (std::size_t p = 1; p < a.size(); ++p)
    apart = std::max(apart, std::abs(static_cast<double>(a[p]) - static_cast<double>(b[p])));
  std::printf("next to a large value: small ones apart by %.2e, %llu and %llu deltas\n", apart,
              static_cast<unsigned long long>(before[0]),
              static_cast<unsigned long long>(before[1]));
  CHECK(apart < 1e-4);
  cluster.run_for(60s);
  CHECK(deltas(0) == before[0]);
  CHECK(deltas(1) == before[1]);
}

TEST_CASE("if one end of a link wants fp32 replicas, both use them") {
  const Outcome outcome =
      reach_consensus(2, {10ms}, Codec{CodecId::int8, 0}, schema_of({300, 2000}), 1ms, 1e-4,
                      {ReplicaFormat::bf16, ReplicaFormat::fp32});
  CHECK(outcome.final_distance <= 1e-4 * outcome.initial_distance);  // closer than bf16 comes
  CHECK(outcome.checks > 2);
}

TEST_CASE("a link in bf16 that breaks at any message goes on with the same bits") {
  const Schema schema = schema_of({700, 64});
  for (std::uint64_t messages = 1; messages < 60; messages += 3) {
    CAPTURE(messages);
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < 2; ++i) {
      NodeOptions options = with_model(schema, i);
      options.exchange.replicas = ReplicaFormat::bf16;
      cluster.add(options);
    }
    cluster.cut_after(messages);
    cluster.run_for(20s);
    REQUIRE(cluster.view(0).links.size() == 1);
    CHECK(cluster.view(0).links.at(0).counters.turns_heard > 5);
    CHECK(cluster.replica_checks() > 2);
    CHECK(cluster.consensus_distance() < ExchangePolicy{}.consensus_bound);
  }
}

TEST_CASE("a node alone trains exactly as if there were no gossip") {
  const Schema schema = schema_of({500, 20});
  const auto step = [](std::size_t, std::span<float> x, Step s) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] -= 0.01f * std::sin(x[i] + static_cast<float>(s + i));
  };
  VirtualCluster cluster(schema, step);
  NodeOptions options;
  options.start = random_model(schema.floats(), 5);
  std::vector<float> plain = options.start;
  cluster.add(options);
  cluster.run_until([&] { return cluster.steps(0) == 500; }, 60s);
  REQUIRE(cluster.steps(0) == 500);
  for (Step s = 1; s <= 500; ++s) step(0, plain, s);
  CHECK(std::memcmp(plain.data(), cluster.model(0).data(), plain.size() * sizeof(float)) == 0);
}

TEST_CASE("a joiner takes the cluster's model and then trains with it") {
  const Schema schema = schema_of({5000, 100});
  VirtualCluster cluster(schema);
  NodeOptions founder;
  founder.start = random_model(schema.floats(), 9);
  cluster.add(founder);
  NodeOptions second = founder;
  second.seeds = {0};
  cluster.add(second);
  cluster.run_for(5s);
  NodeOptions joiner;
  joiner.seeds = {1};
  cluster.add(joiner);
  CHECK(cluster.node(2).phase() == Phase::joining);
  REQUIRE(cluster.run_until(
      [&] {
        return cluster.node(2).phase() == Phase::training && cluster.view(2).links.size() == 2;
      },
      20s));
  cluster.run_for(2s);
  CHECK(cluster.consensus_distance() < ExchangePolicy{}.consensus_bound);
  CHECK(cluster.model(2)[17] == doctest::Approx(cluster.model(0)[17]).epsilon(1e-2));
}

TEST_CASE(
    "a new link costs a quarter of the model in int8, the whole of it in fp32, and then nothing is "
    "lost") {
  const Schema schema = schema_of({50'000, 100});
  const auto joined = [&](CodecId codec) {
    VirtualCluster cluster(schema);
    NodeOptions founder;
    founder.start = random_model(schema.floats(), 9);
    founder.exchange.keyframe_codec = Codec{codec};
    cluster.add(founder);
    NodeOptions joiner = founder;
    joiner.seeds = {0};
    joiner.start.clear();
    cluster.add(joiner);
    REQUIRE(cluster.run_until([&] { return cluster.node(1).phase() == Phase::training; }, 20s));
    double off = 0, norm = 0;
    for (std::size_t p = 0; p < schema.floats(); ++p) {
      off += std::pow(cluster.model(1)[p] - founder.start[p], 2.0);
      norm += std::pow(founder.start[p], 2.0);
    }
    // small blocks stay exact
    CHECK(std::memcmp(&cluster.model(1)[50'000], &founder.start[50'000], 400) == 0);
    return std::pair{std::sqrt(off / norm), cluster.bytes()};
  };
  const auto [exact_error, exact_bytes] = joined(CodecId::fp32);
  const auto [quantised_error, quantised_bytes] = joined(CodecId::int8);
  CHECK(exact_error == 0);
  CHECK(quantised_error > 0);
  CHECK(quantised_error < 0.01);
  CHECK(static_cast<double>(quantised_bytes) < 0.3 * static_cast<double>(exact_bytes));
}

TEST_CASE("a segment that is local stays as its own node makes it") {
  const auto schema = Schema::build({Segment{"w", {300}, 0, 300, SegmentKind::parameter},
                                     Segment{"steps", {2}, 300, 2, SegmentKind::local}});
  REQUIRE(schema);
  VirtualCluster cluster(*schema, [](std::size_t, std::span<float> x, Step) { x[300] += 1; });
  for (std::size_t i = 0; i < 2; ++i) {
    NodeOptions options = with_model(*schema, i);
    options.start[300] = 0;
    options.start[301] = static_cast<float>(i + 1);
    cluster.add(options);
  }
  cluster.run_for(20s);
  REQUIRE(cluster.view(0).links.at(0).counters.turns_heard > 5);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(cluster.model(i)[300] == static_cast<float>(cluster.steps(i)));
    CHECK(cluster.model(i)[301] == static_cast<float>(i + 1));
  }
}

TEST_CASE("over long lines models agree soonest with the gains of mixing 1") {
  const Schema schema = schema_of({300, 2000, 64});
  const auto agreement_takes = [&](double mixing) {
    VirtualCluster cluster(schema);
    cluster.set_latency(500ms);
    for (std::size_t i = 0; i < 8; ++i) {
      NodeOptions options = equal(i, schema, Codec{CodecId::int8, 0});
      options.step_time = 50ms;
      options.exchange.outer_momentum = 0;
      options.exchange.mixing = mixing;
      cluster.add(options);
    }
    const double consensus_distance = cluster.consensus_distance();
    const Instant began = cluster.now();
    const bool agreed = cluster.run_until(
        [&] { return cluster.consensus_distance() < 1e-3 * consensus_distance; }, 120s);
    return agreed ? seconds(cluster.now() - began) : std::numeric_limits<double>::infinity();
  };
  const double as_it_is = agreement_takes(1), stronger = agreement_takes(1.5),
               strongest = agreement_takes(2);
  std::printf(
      "a round trip of 1 s, to a thousandth of the consensus distance: mixing 1: %.1f s, 1.5: %.1f "
      "s, 2: %.1f "
      "s\n",
      as_it_is, stronger, strongest);
  CHECK(as_it_is < 16);
  CHECK(stronger > 1.2 * as_it_is);
  CHECK(stronger < 30);
  CHECK(strongest > 4 * as_it_is);
}
