// What the exchange survives: cuts at any message, frozen and dead peers, bad deltas, own NaN.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/wire/turn.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

// Training that leads straight on, so that a model tells how far it is.
void climb(std::size_t, std::span<float> x, Step) {
  for (float& value : x) value += 1e-3f;
}

// How far models that climb have come, and how far one of them has been set back from there.
struct SetBack {
  double best = 0, most = 0;
  void see(std::initializer_list<double> values) {
    best = std::max(best, std::max(values));
    most = std::max(most, best - std::min(values));
  }
};

}  // namespace

TEST_CASE(
    "a connection lost at any message leaves no desync, and the nodes still agree in the end") {
  struct Case {
    const char* name;
    std::vector<std::uint64_t> sizes;
    Codec codec;
    std::uint64_t cuts;
  };
  // The second one's turns are several messages long, so that cuts fall into the middle of them.
  const Case cases[] = {
      {"small blocks, int4", {700, 3000, 40}, {CodecId::int4, 0}, 120},
      {"turns of many messages, fp32", {20'000, 20'000, 20'000, 300}, {CodecId::fp32, 0}, 40}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Schema schema = schema_of(c.sizes);
    std::uint64_t resent = 0, checks = 0;
    for (std::uint64_t cut = 1; cut <= c.cuts; ++cut) {
      CAPTURE(cut);
      VirtualCluster cluster(schema);
      for (std::size_t i = 0; i < 2; ++i) {
        NodeOptions options = with_model(schema, i);
        options.exchange.codec = c.codec;
        options.exchange.threshold = 1e-6;
        options.exchange.outer_momentum = 0.2;
        cluster.add(options);
      }
      cluster.cut_after(cut);
      const double start = cluster.consensus_distance();
      REQUIRE(cluster.run_until(
          [&] { return cluster.consensus_distance() < 1e-3 * start && cluster.messages() > cut; },
          60s));
      for (const LinkView& link : cluster.view(0).links) {
        resent += link.counters.deltas_resent;
        CHECK(link.counters.refused_total() == 0);
      }
      checks += cluster.replica_checks();
    }
    std::printf("%s: %llu cuts, %llu deltas sent again, %llu replica checks\n", c.name,
                static_cast<unsigned long long>(c.cuts), static_cast<unsigned long long>(resent),
                static_cast<unsigned long long>(checks));
    CHECK(resent > 0);
    CHECK(checks > 5 * c.cuts);
  }
}

TEST_CASE("a stall that cost a node few steps leaves its weight, a long one makes it a newcomer") {
  for (const Duration step : {Duration{1s}, Duration{10ms}}) {
    const Schema schema = schema_of({600});
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < 2; ++i) {
      NodeOptions options = with_model(schema, 0);
      if (i > 0) options.seeds = {0};
      options.step_time = step;
      options.exchange.joiner_steps = static_cast<Step>(40s / step);
      options.exchange.period_steps = 4;
      cluster.add(options);
    }
    cluster.run_for(60s);
    cluster.freeze(1, 1800ms);
    cluster.run_for(10s);
    // of node 1, over that of both
    const double weight = cluster.view(0).links.at(0).counters.gain;
    CAPTURE(weight);
    CHECK((step == Duration{1s} ? weight > 0.49 : weight < 0.25));
  }
}

TEST_CASE("a dead peer is noticed, costs the others no step, and comes back") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  const Step before = cluster.steps(0);
  const std::uint64_t incarnation = cluster.disk(2).incarnation;
  cluster.kill(2);
  cluster.run_for(15s);
  CHECK(cluster.steps(0) - before == 1500);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::failed);
  CHECK(member(cluster.view(1), cluster.id(2))->record.state == MemberState::failed);
  cluster.restart(2);
  REQUIRE(cluster.run_until(
      [&] {
        return member(cluster.view(0), cluster.id(2))->record.state == MemberState::alive &&
               cluster.view(2).links.size() == 2;
      },
      30s));
  CHECK(cluster.disk(2).incarnation > incarnation);
}

TEST_CASE("a frozen peer costs the others no step and is a member again after it thaws") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  const Step before = cluster.steps(0);
  cluster.freeze(2, 30s);
  cluster.run_for(30s);
  CHECK(cluster.steps(0) - before == 3000);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::failed);
  REQUIRE(cluster.run_until(
      [&] { return member(cluster.view(0), cluster.id(2))->record.state == MemberState::alive; },
      30s));
  CHECK(member(cluster.view(2), cluster.id(0))->record.state == MemberState::alive);
}

TEST_CASE("a thawed node takes in what the others have learnt and does not pull them back") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema, climb);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  const auto mean_of = [&](std::size_t i) {
    return static_cast<double>(
               std::accumulate(cluster.model(i).begin(), cluster.model(i).end(), 0.0f)) /
           2000;
  };
  cluster.freeze(2, 30s);
  cluster.run_for(30s);
  const double gap = mean_of(0) - mean_of(2);
  REQUIRE(gap > 2.5);
  SetBack others;
  REQUIRE(cluster.run_until(
      [&] {
        others.see({mean_of(0), mean_of(1)});
        return others.best - mean_of(2) < 0.1 * gap;
      },
      30s));
  std::printf("thaw: the others are set back by %.3f of what lies between\n", others.most / gap);
  CHECK(others.most < 0.01 * gap);
}

TEST_CASE("a node that comes back paused does not pull the others back") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema, climb);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(10s);
  const auto first_value = [&](std::size_t i) {
    return static_cast<double>(cluster.model(i).front());
  };
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.pause(now)); });
  cluster.run_for(2s);
  cluster.write_checkpoint(1);
  cluster.kill(1);
  cluster.run_for(30s);
  const double gap = first_value(0) - first_value(1);
  REQUIRE(gap > 2.5);
  cluster.start_from_disk(1);
  SetBack other;
  REQUIRE(cluster.run_until(
      [&] {
        other.see({first_value(0)});
        return cluster.node(1).phase() == Phase::paused && other.best - first_value(1) < 0.2 * gap;
      },
      30s));
  std::printf("back, paused: the other is set back by %.3f of what lies between\n",
              other.most / gap);
  CHECK(other.most < 0.06 * gap);  // 0.787 where it weighed as much
}

TEST_CASE("of a trainer that hangs the others do not go on counting steps") {
  const Schema schema = schema_of({300});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(20s);
  cluster.options(2).step_time = 1h;
  cluster.run_for(30s);
  const NodeView samples = cluster.view(0);
  std::printf("a trainer hangs: %llu samples counted, %llu estimated\n",
              static_cast<unsigned long long>(samples.cluster_samples),
              static_cast<unsigned long long>(samples.cluster_samples_estimate));
  // A second of one node is 3,200 samples.
  CHECK(samples.cluster_samples_estimate < samples.cluster_samples + 10'000);
}

TEST_CASE("links outlive a stall that others gave a node up for but that cost it few steps") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema, climb);
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options = with_model(schema, 0);
    if (i > 0) options.seeds = {0};
    options.step_time = 1s;
    cluster.add(options);
  }
  cluster.run_for(120s);
  const auto keyframes = [&] {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < cluster.size(); ++i)
      for (const LinkView& link : cluster.view(i).links) sum += link.counters.keyframes_sent;
    return sum;
  };
  const std::uint64_t before = keyframes();
  cluster.freeze(2, 25s);
  cluster.run_for(25s);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::failed);
  cluster.run_for(60s);
  CHECK(member(cluster.view(0), cluster.id(2))->record.state == MemberState::alive);
  CHECK(keyframes() == before);
}

namespace {

struct BadDelta {
  Reject reason;
  std::function<void(Bytes&)> spoil;
};

// Node 0's deltas are spoiled until node 1 quarantines it, and then no more.
void check_refused(const BadDelta& bad) {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) {
    NodeOptions options = with_model(schema, i);
    options.exchange.codec = Codec{CodecId::fp32, 0};
    cluster.add(options);
  }
  cluster.run_for(3s);
  REQUIRE(!cluster.node(1).received_from(cluster.id(0)).empty());
  bool spoiled = false, intact = true;
  cluster.tamper([&](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    if (from != 0 || lane != Lane::bulk || message.size() < turn_header_bytes + turn_record_bytes ||
        bulk_kind(message) != BulkKind::turn)
      return true;
    bad.spoil(message);
    spoiled = true;
    return true;
  });
  for (float& x : cluster.model(0)) x += 0.01f;
  REQUIRE(cluster.run_until(
      [&] { return spoiled && has_refusal(cluster.view(1), "quarantined", true); }, 60s));
  cluster.run_for(100ms);
  std::uint64_t counted = 0;
  for (const LinkView& link : cluster.view(1).links)
    counted += link.counters.refused[raw(bad.reason)];
  CHECK(counted >= 1);
  CHECK(has_refusal(cluster.view(0), "quarantined", false));
  CHECK(cluster.view(1).links[0].quarantine_s > 5);
  for (const float x : cluster.model(1)) intact = intact && std::isfinite(x) && std::fabs(x) < 10;
  CHECK(intact);
  cluster.tamper({});
  REQUIRE(cluster.run_until(
      [&] {
        return cluster.view(1).links[0].state == "open" &&
               cluster.view(1).links[0].counters.consensus_distance < 5e-3;
      },
      120s));
  CHECK(cluster.view(1).links[0].quarantine_s == 0);
}

}  // namespace

TEST_CASE(
    "every kind of bad delta changes nothing, is counted by its reason, and quarantines the link "
    "when it repeats") {
  const auto set = [](Bytes& message, std::size_t at, auto value) {
    if (message.size() >= at + sizeof value) std::memcpy(message.data() + at, &value, sizeof value);
  };
  const std::size_t record = turn_header_bytes;
  for (const BadDelta& bad : {
           BadDelta{Reject::malformed, [](Bytes& m) { m.resize(m.size() - 1); }},
           BadDelta{Reject::bad_gain,
                    [&](Bytes& m) { set(m, 12, std::numeric_limits<float>::quiet_NaN()); }},
           BadDelta{Reject::unknown_block, [&](Bytes& m) { set(m, record, std::uint32_t{99}); }},
           BadDelta{Reject::out_of_turn, [&](Bytes& m) { set(m, 4, std::uint32_t{123456}); }},
           BadDelta{Reject::base_mismatch, [&](Bytes& m) { set(m, record + 4, Version{777777}); }},
           BadDelta{Reject::not_finite,
                    [&](Bytes& m) {
                      set(m, record + turn_record_bytes, std::numeric_limits<float>::quiet_NaN());
                    }},
           BadDelta{Reject::absurd_magnitude,
                    [&](Bytes& m) { set(m, record + turn_record_bytes, 1e30f); }},
       }) {
    const std::string reason = to_string(bad.reason);
    CAPTURE(reason);
    check_refused(bad);
  }
}

TEST_CASE(
    "a node whose own model turns non-finite publishes nothing, says so, and takes a neighbour's "
    "model") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options = with_model(schema, i);
    // else it would go back to its own former model: guard_test.cpp
    options.exchange.guard.step_jump = 0;
    cluster.add(options);
  }
  cluster.run_for(5s);
  cluster.model(1)[7] = std::numeric_limits<float>::quiet_NaN();
  bool was_broken = false;
  REQUIRE(cluster.run_until(
      [&] {
        for (const std::string& line : cluster.log(1))
          was_broken = was_broken || line.find("to=broken") != std::string::npos;
        return was_broken && cluster.node(1).phase() == Phase::training;
      },
      30s));
  cluster.run_for(5s);
  for (std::size_t i = 0; i < 3; ++i)
    for (const float x : cluster.model(i)) REQUIRE(std::isfinite(x));
}
