// The exchange policies and corrections through real nodes: bytes follow the rule, consensus is
// kept.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

struct Outcome {
  std::uint64_t turns = 0, bytes = 0;  // that node 0 spoke in the last 20 s
  double consensus_distance = 0;       // rms, at the end
  NodeView view;
};

// Four nodes whose models move by a common drift and noise of their own.
Outcome train(const ExchangePolicy& policy, Duration settle = 20s) {
  const Schema schema = schema_of({600, 2000});
  const auto noise = std::make_shared<std::vector<Random>>();
  for (std::uint64_t i = 0; i < 4; ++i) noise->emplace_back(i + 1);
  VirtualCluster cluster(schema, [noise](std::size_t node, std::span<float> x, Step) {
    for (std::size_t p = 0; p < x.size(); ++p)
      x[p] +=
          static_cast<float>((p % 2 == 0 ? 2e-4 : -2e-4) + 1e-3 * ((*noise)[node].uniform() - 0.5));
  });
  for (std::size_t i = 0; i < 4; ++i) {
    NodeOptions options = with_model(schema, 0);
    if (i > 0) options.seeds = {0};
    options.exchange = policy;
    cluster.add(options);
  }
  cluster.run_for(settle);
  const auto sum = [&] {
    Outcome o;
    for (const LinkView& link : cluster.view(0).links)
      o.turns += link.counters.turns_spoken, o.bytes += link.counters.bytes_sent;
    return o;
  };
  const Outcome before = sum();
  cluster.run_for(20s);
  Outcome after = sum();
  after.turns -= before.turns;
  after.bytes -= before.bytes;
  after.consensus_distance = cluster.consensus_distance();
  after.view = cluster.view(0);
  CHECK(cluster.replica_checks() > 10);
  return after;
}

}  // namespace

TEST_CASE("a period is kept on every link") {
  ExchangePolicy policy;
  policy.trigger = TriggerRule::period;
  policy.period_steps = 40;  // 0.4 s, so 50 turns a link in 20 s
  const Outcome o = train(policy);
  const auto links = static_cast<double>(o.view.links.size());
  CHECK(static_cast<double>(o.turns) / links <= 50.5);
  CHECK(static_cast<double>(o.turns) / links > 40);
}

TEST_CASE("a budget of bytes is kept, and more of it brings the models closer") {
  double distance_before = 0;
  for (const double budget : {1500.0, 6000.0}) {
    ExchangePolicy policy;
    policy.trigger = TriggerRule::budget;
    policy.budget_bytes_per_s = budget;
    const Outcome o = train(policy);
    std::printf("budget %.0f B/s: spoke %.0f B/s, consensus distance %.5f\n", budget,
                static_cast<double>(o.bytes) / 20, o.consensus_distance);
    CHECK(static_cast<double>(o.bytes) / 20 < 1.1 * budget);
    CHECK(static_cast<double>(o.bytes) / 20 > 0.7 * budget);
    if (distance_before > 0) CHECK(o.consensus_distance < distance_before);
    distance_before = o.consensus_distance;
  }
}

TEST_CASE("a far line gets a finer codec, a narrow one does not") {
  const auto codec_over = [](const VirtualNetwork::Way& way) {
    const Schema schema = schema_of({40000});
    Random noise(1);
    VirtualCluster cluster(schema, [&](std::size_t, std::span<float> x, Step) {
      for (float& value : x) value += static_cast<float>(1e-3 * (noise.uniform() - 0.5));
    });
    for (const bool first : {true, false}) {
      NodeOptions options = with_model(schema, 0);
      if (!first) options.seeds = {0};
      cluster.add(options);
    }
    cluster.network().way(0, 1) = cluster.network().way(1, 0) = way;
    cluster.run_for(60s);
    const NodeView view = cluster.view(0);
    REQUIRE(view.links.size() == 1);
    CHECK(view.links[0].counters.turns_spoken > 20);
    // Both lines keep a ping waiting for longer than the 8 steps of 10 ms that a period has: 1.5 ·
    // 200 / 80 = 3.75 times the entries.
    CHECK(view.links[0].rtt_ms > 100);
    return to_text(view.links[0].counters.codec);
  };
  CHECK(codec_over({.latency = 100ms}) == "top_k:240");
  // At 5 kB/s and less it may be that no ping finds the line empty.
  for (const double rate : {5500.0, 6200.0, 7000.0})
    CHECK(codec_over({.bytes_per_s = rate}) == "top_k:64");
}

TEST_CASE("curvature and loss trust keep the cluster together") {
  std::vector<ExchangePolicy> policies(4);
  policies[0].correction.curvature = 0.05;
  policies[1].correction.curvature = 0.05;
  policies[1].correction.curvature_mode = CurvatureMode::adaptive;
  policies[2].correction.loss_trust = LossTrust::holt;
  policies[3].correction.loss_trust = LossTrust::lstm;
  for (ExchangePolicy& policy : policies) {
    policy.codec = Codec{CodecId::int8, 0};
    policy.correction.future_position = 1;
    const Outcome o = train(policy);
    CHECK(o.turns > 20);
    for (const LinkView& link : o.view.links) CHECK(link.counters.correction > 0);
    CHECK(o.consensus_distance < 0.02);
    for (const LinkView& link : o.view.links)
      CHECK((link.counters.trust >= 0.5 && link.counters.trust <= 2));
  }
}

// Every step of every node adds this to every value.
constexpr float stride = 1e-3f;

// `steps`: how long one takes, of each node; the first one founds.
VirtualCluster striding(const std::vector<Duration>& steps, double momentum = 0.5,
                        Duration latency = 1ms, const ExchangePolicy& policy = {}) {
  const Schema schema = schema_of({600, 2000});
  VirtualCluster cluster(schema, [](std::size_t, std::span<float> x, Step) {
    for (float& value : x) value += stride;
  });
  for (std::size_t i = 0; i < steps.size(); ++i) {
    NodeOptions options = with_model(schema, 0);
    if (i > 0) options.seeds = {0};
    options.step_time = steps[i];
    options.exchange = policy;
    options.exchange.outer_momentum = momentum;
    options.loss = 1;
    cluster.add(options);
  }
  cluster.set_latency(latency);
  return cluster;
}

// Of the mean model, in strides for each step of the mean node.
double pace_of(VirtualCluster& cluster, Duration settling, Duration time) {
  const auto steps = [&cluster] {
    double sum = 0;
    for (std::size_t i = 0; i < cluster.size(); ++i) sum += static_cast<double>(cluster.steps(i));
    return sum / static_cast<double>(cluster.size());
  };
  cluster.run_for(settling);
  const double from = cluster.mean()[0], before = steps();
  cluster.run_for(time);
  return (cluster.mean()[0] - from) / (steps() - before) / stride;
}

TEST_CASE("a neighbour of which nothing is taken does not slow a node down") {
  VirtualCluster cluster = striding({10ms, 10ms});
  NodeOptions options = with_model(schema_of({600, 2000}), 0);
  options.seeds = {0};
  options.loss = 100;
  cluster.add(options);
  cluster.run_for(10s);
  const double from = static_cast<double>(cluster.model(0)[0]);
  const Step steps = cluster.steps(0);
  cluster.run_for(20s);
  REQUIRE(cluster.view(0).links.size() == 2);
  std::uint64_t distrusted = 0;
  for (const LinkView& link : cluster.view(0).links)
    distrusted += link.counters.transfers_distrusted;
  REQUIRE(distrusted > 20);
  const double pace = (static_cast<double>(cluster.model(0)[0]) - from) /
                      static_cast<double>(cluster.steps(0) - steps) / stride;
  std::printf("one of two neighbours distrusted: %.3f of the pace of the gradients\n", pace);
  CHECK(pace > 0.95);
  CHECK(pace < 1.05);
}

TEST_CASE("outer momentum does not change the pace of what the nodes have in common") {
  const auto pace = [](double momentum, Duration latency = 1ms) {
    VirtualCluster cluster = striding({10ms, 10ms, 10ms, 10ms}, momentum, latency);
    const double moved = pace_of(cluster, 10s, 20s);
    CHECK(cluster.consensus_distance() <
          0.1);  // each value moves 0.25 until the sparse codec has told of it
    return moved;
  };
  // The far line has a round trip of four periods of 8 steps of 10 ms: its momentum is 0.7.
  const double none = pace(0), near = pace(0.5), far = pace(0.5, 160ms);
  std::printf("outer momentum 0.5: %.3f of the pace of the gradients, %.3f on a far line\n", near,
              far);
  CHECK(none == doctest::Approx(1).epsilon(0.01));
  CHECK(near == doctest::Approx(1).epsilon(0.02));
  CHECK(far == doctest::Approx(1).epsilon(0.02));
}

TEST_CASE("nor does it at unlike speeds, whoever opens the exchanges") {
  for (const std::vector<int>& steps_ms : std::vector<std::vector<int>>{
           {40, 10}, {12, 10}, {10, 80}, {80, 10}, {80, 80, 10, 10}, {80, 10, 10, 10}}) {
    std::vector<Duration> steps;
    std::string speeds;
    for (const int ms : steps_ms) {
      steps.push_back(std::chrono::milliseconds(ms));
      speeds += std::to_string(ms) + " ";
    }
    VirtualCluster cluster = striding(steps);
    const double pace = pace_of(cluster, 20s, 60s);
    std::printf("steps of %sms: %.3f of the pace of the gradients\n", speeds.c_str(), pace);
    CAPTURE(speeds);
    CHECK(pace == doctest::Approx(1).epsilon(0.03));
  }
}

// The slow one looks at every second of its steps only, so half as often remains.
TEST_CASE("how often two unlike boxes exchange depends little on which of them opens") {
  const auto exchanges = [](Duration founder, Duration other) {
    VirtualCluster cluster = striding({founder, other});
    cluster.run_for(40s);
    REQUIRE(cluster.view(0).links.size() == 1);
    return static_cast<double>(cluster.view(0).links[0].counters.turns_spoken);
  };
  const double slow_first = exchanges(80ms, 10ms), fast_first = exchanges(10ms, 80ms);
  std::printf("speeds 1:8, the slow one founds: %.0f exchanges, the fast one: %.0f\n", slow_first,
              fast_first);
  CHECK(slow_first > 0.45 * fast_first);
  CHECK(slow_first < 1.1 * fast_first);
}

TEST_CASE("a period is kept by the steps of the end that opens, whoever is faster") {
  ExchangePolicy period;
  period.trigger = TriggerRule::period;
  for (const bool slow_first : {true, false}) {
    CAPTURE(slow_first);
    const Duration opener = slow_first ? 80ms : 10ms;
    VirtualCluster cluster = striding({opener, slow_first ? 10ms : 80ms}, 0.5, 1ms, period);
    cluster.run_for(40s);
    REQUIRE(cluster.view(0).links.size() == 1);
    const double periods = 40 / (static_cast<double>(period.period_steps) * seconds(opener));
    CHECK(static_cast<double>(cluster.view(0).links[0].counters.turns_spoken) ==
          doctest::Approx(periods).epsilon(0.05));
  }
}

TEST_CASE("a paused node sends no more than one that trains") {
  const Schema schema = schema_of({600, 20000});
  std::vector<Random> noise;
  for (std::size_t i = 0; i < 4; ++i) noise.emplace_back(i + 1);
  VirtualCluster cluster(schema, [&](std::size_t node, std::span<float> x, Step) {
    for (float& value : x)
      value += stride / 5 + 4 * stride * (static_cast<float>(noise[node].uniform()) - 0.5f);
  });
  for (std::size_t i = 0; i < 4; ++i) {
    NodeOptions options = with_model(schema, 0);
    if (i > 0) options.seeds = {0};
    options.step_time = 50ms;
    cluster.add(options);
  }
  cluster.set_latency(1ms);
  cluster.run_for(20s);
  cluster.act(0, [](Node& node, Instant now) { CHECK_FALSE(node.pause(now)); });
  const auto sent = [&](std::size_t i) {
    std::uint64_t bytes = 0;
    for (const LinkView& link : cluster.view(i).links) bytes += link.counters.bytes_sent;
    return static_cast<double>(bytes);
  };
  cluster.run_for(5s);
  const double of_paused = sent(0), of_others = sent(1) + sent(2) + sent(3);
  cluster.run_for(20s);
  const double paused = sent(0) - of_paused;
  const double trains = (sent(1) + sent(2) + sent(3) - of_others) / 3;
  std::printf("a paused node sends %.2f times what one that trains does\n", paused / trains);
  CHECK(paused > 0.2 * trains);
  CHECK(paused < 1.2 * trains);
  CHECK(cluster.consensus_distance() < 0.2);
}

TEST_CASE("a frozen neighbour brings no outer momentum, and own steps count in full meanwhile") {
  VirtualCluster cluster = striding({10ms, 10ms});
  cluster.run_for(10s);
  cluster.freeze(1, 10s);
  cluster.run_for(1s);
  const double from = cluster.model(0)[0];
  const Step steps = cluster.steps(0);
  cluster.run_for(5s);
  CHECK((cluster.model(0)[0] - from) / static_cast<double>(cluster.steps(0) - steps) / stride ==
        doctest::Approx(1).epsilon(0.01));
}

TEST_CASE(
    "a neighbour with the larger loss is trusted less, and the weighted sum still moves by "
    "nothing") {
  const Schema schema = schema_of({500});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) {
    NodeOptions options = with_model(schema, i);
    options.loss = i == 0 ? 1.0 : 1.5;
    options.exchange.codec = Codec{CodecId::fp32, 0};
    options.exchange.threshold = 1e-6;
    options.exchange.joiner_weight = 1;
    options.exchange.joiner_steps = 0;
    options.exchange.correction.loss_trust = LossTrust::holt;
    cluster.add(options);
  }
  const std::vector<float> a(cluster.model(0).begin(), cluster.model(0).end()),
      b(cluster.model(1).begin(), cluster.model(1).end());
  cluster.run_until([&] { return cluster.consensus_distance() < 1e-4; }, 60s);
  CHECK(cluster.view(0).links[0].counters.trust == doctest::Approx(1 / 1.5).epsilon(0.01));
  CHECK(cluster.view(1).links[0].counters.trust == doctest::Approx(1.5).epsilon(0.01));
  // Weights 1 and 1/1.5: where they meet is the weighted mean.
  double error = 0, distance = 0;
  for (std::size_t p = 0; p < a.size(); ++p) {
    const double mean = (1.5 * static_cast<double>(a[p]) + static_cast<double>(b[p])) / 2.5;
    error += std::pow(static_cast<double>(cluster.model(0)[p]) - mean, 2);
    distance += std::pow(static_cast<double>(a[p]) - static_cast<double>(b[p]), 2);
  }
  CHECK(std::sqrt(error / distance) < 0.05);
}

TEST_CASE("parameters wait until they have changed by enough usual steps, and bytes with them") {
  const auto with = [](double entry_threshold) {
    ExchangePolicy policy;
    policy.entry_threshold = entry_threshold;
    policy.period_steps = 4;
    return train(policy);
  };
  const Outcome all = with(0), some = with(100), none = with(1e6);
  std::printf("entries of 0, 100 and 1e6 usual steps: %llu, %llu and %llu bytes\n",
              static_cast<unsigned long long>(all.bytes),
              static_cast<unsigned long long>(some.bytes),
              static_cast<unsigned long long>(none.bytes));
  CHECK(some.bytes < 3 * all.bytes / 4);
  CHECK(none.bytes < some.bytes / 2);
}
