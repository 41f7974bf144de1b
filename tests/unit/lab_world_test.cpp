// The lab's instrument itself: wires, machines, splits, statistics, seeds.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "models/data/data_order.h"
#include "tools/lab/data_split.h"
#include "tools/lab/results_file.h"
#include "tools/lab/rows.h"
#include "tools/lab/world.h"

using namespace gossipd;
using namespace gossipd::lab;

namespace {

MachineSpec machine(double mbps) {
  MachineSpec m;
  m.uplink_bps = m.downlink_bps = mbps * 1e6;
  return m;
}

WireSpec wire(double latency_s) {
  WireSpec w;
  w.latency_s = latency_s;
  return w;
}

void run(World& world) {
  while (world.advance()) {
  }
}

}  // namespace

TEST_CASE("events of one instant run in the order in which they were asked for") {
  World world({machine(1), machine(1)}, wire(0), 1, 1);
  std::vector<int> order;
  world.after(from_seconds(2), [&] { order.push_back(3); });
  world.after(from_seconds(1), [&] {
    order.push_back(1);
    world.at(world.now(), [&] { order.push_back(2); });
  });
  world.after(from_seconds(2), [&] { order.push_back(4); });
  run(world);
  CHECK(order == std::vector<int>{1, 2, 3, 4});
  CHECK(world.seconds_now() == doctest::Approx(2));
}

TEST_CASE(
    "a message takes its bits over the line and the latency; a second one waits for the first") {
  World world({machine(8), machine(8)}, wire(0.1), 1, 1);
  std::vector<double> arrived, sent;
  for (int i = 0; i < 2; ++i)
    world.send(
        0, 1, 1'000'000, Lane::bulk, [&] { arrived.push_back(world.seconds_now()); },
        [&] { sent.push_back(world.seconds_now()); });
  run(world);
  REQUIRE(arrived.size() == 2);
  CHECK(sent[0] == doctest::Approx(1.0));
  CHECK(sent[1] == doctest::Approx(2.0));
  CHECK(arrived[0] == doctest::Approx(1.1));
  CHECK(arrived[1] == doctest::Approx(2.1));
  CHECK(world.traffic().bytes == 2'000'000);
  CHECK(world.traffic().messages == 2);
}

TEST_CASE("control overtakes bulk, but for the chunk that is under way") {
  World world({machine(8), machine(8)}, wire(0), 1, 1);
  double bulk = 0, control = 0;
  world.send(0, 1, 10'000'000, Lane::bulk, [&] { bulk = world.seconds_now(); });
  world.send(0, 1, 100, Lane::control, [&] { control = world.seconds_now(); });
  run(world);
  CHECK(bulk == doctest::Approx(10.0).epsilon(0.01));
  CHECK(control < 0.2);
}

TEST_CASE("a pair's limit holds up nothing but that pair, in one direction") {
  WireSpec narrow = wire(0);
  narrow.bandwidth_bps = 8e6;
  World world({machine(1000), machine(1000), machine(1000)}, narrow, 1, 1);
  std::map<std::pair<std::size_t, std::size_t>, std::vector<double>> arrived;
  double left = 0, control = 0;
  const auto send = [&](std::size_t from, std::size_t to) {
    world.send(
        from, to, 1'000'000, Lane::bulk,
        [&, from, to] {
          arrived[{from, to}].push_back(world.seconds_now());
        },
        [&] { left = world.seconds_now(); });
  };
  send(0, 1), send(0, 1), send(0, 1), send(0, 2), send(1, 0), send(2, 1);
  world.send(0, 1, 100, Lane::control, [&] { control = world.seconds_now(); });
  run(world);
  for (const auto& pair :
       {std::pair(0u, 1u), std::pair(0u, 2u), std::pair(1u, 0u), std::pair(2u, 1u)})
    CHECK(arrived[pair].front() == doctest::Approx(1).epsilon(0.02));
  REQUIRE(arrived[{0, 1}].size() == 3);
  CHECK(arrived[{0, 1}].back() == doctest::Approx(3).epsilon(0.02));
  CHECK(left == doctest::Approx(3).epsilon(0.02));
  CHECK(control < 0.2);
}

TEST_CASE("two senders share the receiver's line") {
  World world({machine(8), machine(8), machine(8)}, wire(0), 1, 1);
  double last = 0;
  for (std::size_t from : {0u, 1u})
    world.send(from, 2, 1'000'000, Lane::bulk, [&] { last = world.seconds_now(); });
  run(world);
  CHECK(last == doctest::Approx(2.0));
}

TEST_CASE(
    "what is on a wire when it is cut arrives after the healing, in order and before what comes "
    "later") {
  World world({machine(1000), machine(1000)}, wire(0.1), 1, 1);
  std::vector<std::pair<int, double>> arrived;
  const auto send = [&](int what) {
    world.send(0, 1, 100, Lane::control,
               [&arrived, &world, what] { arrived.emplace_back(what, world.seconds_now()); });
  };
  send(1);
  send(2);
  world.after(from_seconds(0.05), [&] { world.cut(0, 1, true); });
  world.after(from_seconds(1), [&] { send(3); });
  world.after(from_seconds(5), [&] { world.cut(0, 1, false); });
  world.after(from_seconds(5.01), [&] { send(4); });
  run(world);
  REQUIRE(arrived.size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(arrived[static_cast<std::size_t>(i)].first == i + 1);
  CHECK(arrived[0].second > 5);
}

TEST_CASE("loss costs round trips, and the same seed draws the same ones") {
  const auto mean_delay = [](double loss, std::uint64_t seed) {
    WireSpec spec = wire(0.01);
    spec.loss = loss;
    World world({machine(1000), machine(1000)}, spec, seed, 1);
    double sum = 0;
    for (int i = 0; i < 200; ++i)
      world.after(from_seconds(i), [&, i] {
        world.send(0, 1, 100'000, Lane::bulk, [&, i] { sum += world.seconds_now() - i; });
      });
    run(world);
    return sum / 200;
  };
  CHECK(mean_delay(0.01, 1) > mean_delay(0, 1) + 0.005);
  CHECK(mean_delay(0.01, 2) == mean_delay(0.01, 2));
}

TEST_CASE("jitter of every kind has mean 1; speed divides the time") {
  for (const auto& [jitter, scale] : {std::pair(MachineSpec::Jitter::none, 0.1),
                                      {MachineSpec::Jitter::lognormal, 0.3},
                                      {MachineSpec::Jitter::pareto, 2.5}}) {
    MachineSpec spec;
    spec.speed = 2, spec.step_base_s = 0.01, spec.step_per_sample_s = 0.001, spec.jitter = jitter,
    spec.jitter_scale = scale;
    World world({spec}, wire(0), 3, 1);
    CHECK(world.mean_step_seconds(0, 30) == doctest::Approx(0.02));
    double sum = 0;
    for (int i = 0; i < 200'000; ++i) sum += seconds(world.step_time(0, 30));
    CHECK(sum / 200'000 == doctest::Approx(0.02).epsilon(0.02));
  }
}

TEST_CASE("a step under way takes the speed that its machine has") {
  MachineSpec m = machine(1);
  m.jitter = MachineSpec::Jitter::none;
  m.step_base_s = 1;
  m.step_per_sample_s = 0;
  World world({m, m}, wire(0), 1, 1);
  std::vector<double> ends;
  const auto step = [&](std::size_t on) {
    world.compute(
        on, 1, [] { return 0.0; }, [&](double) { ends.push_back(world.seconds_now()); });
  };
  step(0), step(1);
  world.after(from_seconds(0.5), [&] { world.set_speed(0, 0.01); });
  world.after(from_seconds(10.5), [&] { world.set_speed(0, 1); });
  run(world);
  REQUIRE(ends.size() == 2);
  CHECK(ends[0] == doctest::Approx(1));
  CHECK(ends[1] == doctest::Approx(10.9));  // half a second was left, and a tenth of one was made
  step(0);
  run(world);
  REQUIRE(ends.size() == 3);  // each once
}

TEST_CASE("work runs while its virtual time passes, and its result comes when that is over") {
  World world({MachineSpec{}}, wire(0), 1, 2);
  double loss = 0, at = 0;
  world.compute(
      0, 32, [] { return 0.25; }, [&](double result) { loss = result, at = world.seconds_now(); });
  run(world);
  CHECK(loss == 0.25);
  CHECK(at == doctest::Approx(0.01));
}

TEST_CASE(
    "a Dirichlet split gives every sample to one node, evens out sizes when asked, and skews "
    "labels the more the smaller alpha is") {
  std::vector<std::uint8_t> labels(6000);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
  const auto skew = [&](double alpha) {
    const auto shards = split_by_dirichlet(labels, 8, alpha, true, 5);
    std::vector<int> seen(labels.size());
    double largest = 0;
    for (const auto& shard : shards) {
      CHECK(shard.size() == labels.size() / 8);
      std::vector<double> share(10);
      for (const std::uint32_t sample : shard)
        ++seen[sample], share[labels[sample]] += 1.0 / static_cast<double>(shard.size());
      largest += *std::max_element(share.begin(), share.end()) / 8;
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    return largest;
  };
  const double alike = skew(1000), skewed = skew(0.3), one_class = skew(0.01);
  CHECK(alike < 0.13);
  CHECK(skewed > 0.25);
  CHECK(one_class > skewed);
  CHECK(split_by_dirichlet(labels, 8, 0.3, false, 5) ==
        split_by_dirichlet(labels, 8, 0.3, false, 5));
  CHECK(split_by_dirichlet(labels, 8, 0.3, false, 5) !=
        split_by_dirichlet(labels, 8, 0.3, false, 6));
  for (const auto& shard : split_by_dirichlet(std::span(labels).first(40), 40, 0.01, false, 1))
    CHECK(shard.size() == 1);
}

TEST_CASE("a shard that others chose is walked through once an epoch, each time in another order") {
  DataOrder order(7, {5, 9, 11, 30}, {2, 4});
  CHECK(order.shard_samples() == 4);
  for (const Samples epoch : {0u, 4u}) {
    std::vector<DataOrder::Visit> visits(4);
    CHECK(order.take(epoch, visits) == epoch + 4);
    std::vector<std::uint32_t> sorted;
    for (const DataOrder::Visit& visit : visits) sorted.push_back(visit.sample);
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == std::vector<std::uint32_t>{5, 9, 11, 30});
  }
}

TEST_CASE("means have Student's bound") {
  const std::vector<double> values = {1, 2, 3, 4};
  const Summary s = summarise(values);
  CHECK(s.mean == doctest::Approx(2.5));
  CHECK(s.deviation == doctest::Approx(1.2909944));
  CHECK(s.bound95 == doctest::Approx(3.182 * 1.2909944 / 2));
  CHECK(student_t_975(9) == doctest::Approx(2.262));
  CHECK(student_t_975(40) == doctest::Approx(2.0211).epsilon(0.001));
  CHECK(summarise(std::span<const double>()).count == 0);
}

TEST_CASE("differences are taken between runs of the same seed") {
  Row base{"base", "", {}}, row{"row", "", {}};
  for (const auto& [seed, accuracy] : {std::pair(1, 0.5), {2, 0.7}, {3, 0.6}}) {
    RunResult run;
    run.seed = static_cast<std::uint64_t>(seed);
    run.accuracy = {accuracy};
    base.runs.push_back(run);
    run.accuracy = {accuracy + 0.1, accuracy + 0.3};
    if (seed != 3) row.runs.push_back(run);
  }
  const Summary difference =
      paired_difference(row, base, [](const RunResult& r) { return r.accuracy_mean(); });
  CHECK(difference.count == 2);
  CHECK(difference.mean == doctest::Approx(0.2));
  CHECK(difference.deviation == doctest::Approx(0));
}

TEST_CASE("seeds are ranges and lists; anything else is refused with an example") {
  CHECK(*parse_seeds("3") == std::vector<std::uint64_t>{3});
  CHECK(*parse_seeds("1..3,7") == std::vector<std::uint64_t>{1, 2, 3, 7});
  for (const char* bad : {"", "a", "3..1", "1..", "..2", "1,,2", "1..5000", "-1", "1 "})
    CHECK_MESSAGE(parse_seeds(bad).error().text.find("1..10") != std::string::npos, bad);
}

TEST_CASE("a result that diverged survives its file") {
  RunResult result;
  result.id = "x", result.name = "n", result.loss = std::nan(""), result.accuracy = {0.1};
  result.curve.push_back({1, 2, 3, 0.1, std::nan("")});
  const Result<RunResult> back = result_from_json(nlohmann::json::parse(to_json(result).dump()));
  REQUIRE(back);
  CHECK(std::isnan(back->loss));
  CHECK(std::isnan(back->curve[0].loss));
  CHECK(back->accuracy_mean() == doctest::Approx(0.1));
  CHECK(!result_from_json(nlohmann::json::object()));
}
