// How a node gets its model: from several neighbours, from one that dies half-way, from one that
// sends wrong blocks.
#include <cmath>
#include <cstdio>

#include "core/node/model_assembly.h"
#include "core/wire/control.h"
#include "core/wire/turn.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t blocks = 24;
constexpr double narrow_bytes_per_s = 500'000;  // a block of 64 Ki floats takes 0.13 s

// A block is a message, and the model takes 3 s on a narrow way.
Schema wide_schema() { return schema_of({blocks * block_floats_max}); }

// Bulk bytes that are sent to one node, by sender, until it trains.
struct Meter : Watcher {
  Meter(VirtualCluster& c, std::size_t node) : cluster(c), joiner(node) {}
  void after_message(std::size_t from, std::size_t to, Lane lane, const Bytes& message) override {
    if (to != joiner || lane != Lane::bulk || done) return;
    heard[from] += message.size();
    ++messages[from];
    done = cluster.alive(joiner) && cluster.node(joiner).phase() == Phase::training;
    if (done) at = cluster.now();
  }
  [[nodiscard]] std::size_t total() const {
    std::size_t sum = 0;
    for (const auto& [from, bytes] : heard) sum += bytes;
    return sum;
  }
  VirtualCluster& cluster;
  std::size_t joiner;
  std::map<std::size_t, std::size_t> heard, messages;
  bool done = false;
  Instant at{};
};

// Donors whose models agree, and a joiner behind narrow ways that is not there yet. With one link
// each the joiner has one donor at a time.
struct Rig {
  explicit Rig(std::size_t donors, std::uint32_t links) : joiner(donors) {
    for (std::size_t i = 0; i < donors; ++i) {
      NodeOptions options;
      if (i > 0) options.seeds = {0};
      options.membership.links = links;
      options.membership.links_max = 12;
      options.start = random_model(schema.floats(), 7);
      // two messages on the way, not the whole model
      options.exchange.bulk_window_bytes = 128 * 1024;
      cluster.add(options);
    }
    cluster.check_no_replicas();
    cluster.run_for(3s);
    NodeOptions options;
    options.seeds = {0};
    options.membership.links = links;
    options.membership.links_max = 12;
    cluster.add_off(options);
    for (std::size_t i = 0; i < donors; ++i)
      cluster.network().way(i, joiner).bytes_per_s = narrow_bytes_per_s;
    cluster.watch(meter);
  }
  // Seconds that the joiner takes from its start on.
  double join() {
    const Instant start = cluster.now();
    cluster.power_on(joiner);
    return finish(start);
  }
  double finish(Instant start) {
    REQUIRE(cluster.run_until([&] { return meter.done; }, 120s));
    return seconds(meter.at - start);
  }
  [[nodiscard]] std::string adopted() const {
    for (const std::string& line : cluster.log(joiner))
      if (line.find("event=model-adopted") != std::string::npos) return line;
    return {};
  }
  // Relative distance of the joiner's model to a donor's: what int8 loses is 0.5 %.
  [[nodiscard]] double off(std::size_t donor) {
    double sum = 0, norm = 0;
    for (std::size_t p = 0; p < schema.floats(); ++p) {
      sum += std::pow(static_cast<double>(cluster.model(joiner)[p] - cluster.model(donor)[p]), 2);
      norm += std::pow(static_cast<double>(cluster.model(donor)[p]), 2);
    }
    return std::sqrt(sum / norm);
  }

  const Schema schema = wide_schema();
  VirtualCluster cluster{schema};
  std::size_t joiner;
  Meter meter{cluster, joiner};
};

}  // namespace

TEST_CASE(
    "two neighbours bring a joiner's model in about half the time of one, each its own half") {
  Rig one(1, 1), two(2, 2);
  const double alone_s = one.join(), together_s = two.join();
  std::printf(
      "a model over %.1f MB/s: %.2f s from one neighbour, %.2f s from two (%zu and %zu messages)\n",
      narrow_bytes_per_s / 1e6, alone_s, together_s, two.meter.messages[0], two.meter.messages[1]);
  CHECK(together_s < 0.65 * alone_s);
  CHECK(one.adopted().find(" blocks=" + std::to_string(blocks)) != std::string::npos);
  CHECK(two.adopted().find(to_hex(two.cluster.id(0))) != std::string::npos);
  CHECK(two.adopted().find(to_hex(two.cluster.id(1))) != std::string::npos);
  for (const std::size_t donor : {0u, 1u}) {
    CHECK(two.meter.messages[donor] >= blocks / 3);
    CHECK(two.off(donor) < 0.01);
  }
}

TEST_CASE(
    "a donor tells its model in pieces of at most two blocks, between which it is there for "
    "everybody else") {
  Rig rig(1, 1);
  std::size_t most = 0, pieces = 0;
  Hooks hooks;
  hooks.effects = [&](std::size_t node, std::vector<Effect>& effects) {  // of one call of work()
    std::size_t bytes = 0;
    for (const Effect& effect : effects)
      if (const auto* sent = std::get_if<SendEffect>(&effect);
          sent != nullptr && sent->lane == Lane::bulk)
        bytes += sent->message->size();
    if (node != 0 || bytes == 0) return;
    ++pieces;
    most = std::max(most, bytes);
  };
  rig.cluster.set_hooks(std::move(hooks));
  rig.join();
  CHECK(pieces >= blocks / 2);
  CHECK(most <= 2 * (turn_header_bytes + turn_record_bytes + turn_hash_bytes +
                     encoded_size(Codec{CodecId::int8}, block_floats_max)));
}

TEST_CASE("blocks from a donor that dies count: the next donor continues there") {
  Rig whole(2, 1);
  whole.join();
  for (const auto death : {VirtualCluster::Death::killed, VirtualCluster::Death::power_lost}) {
    Rig rig(2, 1);
    const Instant start = rig.cluster.now();
    rig.cluster.power_on(rig.joiner);
    REQUIRE(rig.cluster.run_until(
        [&] { return rig.meter.messages[0] + rig.meter.messages[1] == blocks / 2; }, 60s));
    const std::size_t donor = rig.meter.messages[0] > 0 ? 0 : 1, other = 1 - donor;
    REQUIRE(rig.meter.messages[other] == 0);
    rig.cluster.kill(donor, death);
    rig.finish(start);
    std::printf(
        "%s half-way: %zu bytes heard from the first and %zu from the second, %zu without a "
        "death\n",
        death == VirtualCluster::Death::killed ? "killed" : "power lost", rig.meter.heard[donor],
        rig.meter.heard[other], whole.meter.total());
    // what was on the way when it died arrives as well
    // and perhaps one while the joiner puts its model together
    CHECK(rig.meter.messages[donor] + rig.meter.messages[other] >= blocks);
    CHECK(rig.meter.messages[donor] + rig.meter.messages[other] <= blocks + 1);
    CHECK(rig.meter.messages[other] <= blocks / 2 + 1);
    CHECK(rig.meter.total() < whole.meter.total() * 11 / 10);
    CHECK(rig.off(other) < 0.01);
  }
}

TEST_CASE("a connection that breaks half-way is resumed by the same donor where it broke") {
  Rig rig(1, 1);
  const Instant start = rig.cluster.now();
  rig.cluster.power_on(rig.joiner);
  REQUIRE(rig.cluster.run_until([&] { return rig.meter.messages[0] == blocks / 3; }, 60s));
  rig.cluster.network().reset_all();
  rig.finish(start);
  CHECK(rig.meter.messages[0] == blocks);
  CHECK(rig.off(0) < 0.01);
}

TEST_CASE("blocks of a dead donor are forgotten when they are too old") {
  Rig rig(1, 1);
  rig.cluster.power_on(rig.joiner);
  REQUIRE(rig.cluster.run_until([&] { return rig.meter.messages[0] == blocks / 2; }, 60s));
  rig.cluster.kill(0);
  rig.cluster.run_for(kept_age_max + 10s);
  REQUIRE_FALSE(rig.meter.done);
  const std::size_t before = rig.meter.messages[0];  // with what was on the way when it died
  rig.cluster.restart(0);
  const Instant start = rig.cluster.now();
  rig.finish(start);
  CHECK(rig.meter.messages[0] == before + blocks);
}

TEST_CASE(
    "a block that does not have the hash it came with is counted, not taken, and asked for again") {
  Rig rig(1, 1);
  bool spoiled = false;
  rig.cluster.tamper([&](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    if (from != 0 || lane != Lane::bulk || bulk_kind(message) != BulkKind::turn || spoiled ||
        rig.meter.messages[0] < blocks / 3)
      return true;
    // another code of int8: nothing that a check of ranges would find
    message.back() ^= std::byte{1};
    return spoiled = true;
  });
  rig.join();
  REQUIRE(spoiled);
  CHECK(rig.cluster.view(rig.joiner).links[0].counters.refused[raw(Reject::hash_mismatch)] == 1);
  CHECK(has_refusal(rig.cluster.view(rig.joiner), "delta-refused", true));
  CHECK(rig.meter.messages[0] <= blocks + 4);  // the one again, and what was on the way
  CHECK(rig.off(0) < 0.01);
}

TEST_CASE("a joiner that names blocks which the model does not have, or out of order, is refused") {
  const Schema schema = schema_of({100, 100, 100});
  for (const std::vector<std::uint32_t>& named :
       {std::vector<std::uint32_t>{3}, {0, 2, 1}, {0, 1, 1}, {0, 3}}) {
    VirtualCluster cluster(schema);
    cluster.add(with_model(schema, 0));
    cluster.tamper([&](std::size_t from, std::size_t, Lane lane, Bytes& message) {
      if (from != 1 || lane != Lane::control) return true;
      Result<Control> control = decode_control(message);
      auto* ready = control ? std::get_if<Ready>(&*control) : nullptr;
      if (ready == nullptr) return true;
      ready->first_block = named[0];
      ready->held_flips.assign(named.begin() + 1, named.end());
      message = encode_control(*control);
      return true;
    });
    NodeOptions joiner;
    joiner.seeds = {0};
    cluster.add(joiner);
    REQUIRE(
        cluster.run_until([&] { return has_refusal(cluster.view(0), "malformed", true); }, 30s));
  }
}

TEST_CASE("between two nodes that have models a wrong block costs neither the link nor a float") {
  const Schema schema = schema_of({2000});
  VirtualCluster cluster(schema);
  int spoiled = 0;
  cluster.tamper([&](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    if (from != 0 || lane != Lane::bulk || bulk_kind(message) != BulkKind::turn || spoiled > 0)
      return true;
    message.back() ^= std::byte{1};
    ++spoiled;
    return true;
  });
  for (std::size_t i = 0; i < 2; ++i) {
    NodeOptions options = with_model(schema, i);
    options.exchange.threshold = 1e-6;
    cluster.add(options);
  }
  REQUIRE(
      cluster.run_until([&] { return spoiled == 1 && cluster.consensus_distance() < 1e-3; }, 60s));
  std::uint64_t counted = 0;
  for (const std::size_t i : {0u, 1u}) {
    REQUIRE(cluster.view(i).links.size() == 1);
    counted += cluster.view(i).links[0].counters.refused[raw(Reject::hash_mismatch)];
    CHECK_FALSE(has_refusal(cluster.view(i), "delta-refused", true));
  }
  CHECK(counted == 1);
}

TEST_CASE(
    "a donor that sends wrong blocks only is kept away for a while, and nothing of it is taken") {
  Rig rig(1, 1);
  rig.cluster.tamper([](std::size_t from, std::size_t, Lane lane, Bytes& message) {
    if (from == 0 && lane == Lane::bulk && bulk_kind(message) == BulkKind::turn)
      message.back() ^= std::byte{1};
    return true;
  });
  rig.cluster.power_on(rig.joiner);
  REQUIRE(rig.cluster.run_until(
      [&] { return has_refusal(rig.cluster.view(rig.joiner), "quarantined", true); }, 60s));
  CHECK(rig.adopted().empty());
  rig.cluster.tamper({});
  rig.finish(rig.cluster.now());
  CHECK(rig.off(0) < 0.01);
}

namespace {

// Whole blocks that a node's links have sent.
std::uint64_t keyframes(VirtualCluster& cluster, std::size_t node) {
  std::uint64_t sum = 0;
  for (const LinkView& link : cluster.view(node).links) sum += link.counters.keyframes_sent;
  return sum;
}

// Three nodes that begin within a second; each makes `initial` of the job, the founder `start`.
struct Begun {
  Begun(std::vector<float> start, const std::vector<float>& initial, Duration pause = {}) {
    for (std::size_t i = 0; i < 3; ++i) {
      NodeOptions options;
      if (i > 0) options.seeds = {0};
      if (i == 0) options.start = start;
      options.initial = initial;
      i == 0 ? cluster.add(options) : cluster.add_off(options);
    }
    for (std::size_t i = 1; i < 3; ++i) {
      cluster.run_for(i == 1 ? Duration(100ms) : pause);
      cluster.power_on(i);
    }
  }
  void train() {
    REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 30s));
    cluster.run_for(5s);
  }
  [[nodiscard]] std::uint64_t whole() {
    return keyframes(cluster, 0) + keyframes(cluster, 1) + keyframes(cluster, 2);
  }

  const Schema schema = schema_of({3000, 40});
  VirtualCluster cluster{schema};
};

}  // namespace

TEST_CASE("nodes that begin together from the job's initial model send no whole block") {
  const std::vector<float> initial = random_model(3040, 7);
  Begun begun(initial, initial);
  begun.train();
  CHECK(begun.whole() == 0);
  for (std::size_t i = 0; i < 3; ++i) CHECK(begun.cluster.view(i).links.size() == 2);
}

TEST_CASE("a node that comes when the model has moved on gets it whole") {
  const std::vector<float> initial = random_model(3040, 7);
  Begun begun(initial, initial, 5s);  // 500 steps
  begun.train();
  CHECK(begun.whole() > 0);
}

TEST_CASE("another initial model, as of another release, is sent whole") {
  Begun begun(random_model(3040, 7), random_model(3040, 7));
  VirtualCluster& cluster = begun.cluster;
  NodeOptions options;
  options.seeds = {0};
  options.initial = random_model(3040, 8);
  const std::size_t other = cluster.add(options);
  begun.train();
  CHECK(begun.whole() > 0);
  CHECK(std::ranges::equal(cluster.model(0), cluster.model(other),
                           [](float a, float b) { return std::abs(a - b) < 0.2f; }));
}

TEST_CASE("a link that is cut before its first turn still holds the initial model") {
  const std::vector<float> initial = random_model(3040, 7);
  Begun begun(initial, initial);
  REQUIRE(begun.cluster.run_until([&] { return all_in(begun.cluster, Phase::training); }, 30s));
  begun.cluster.network().reset_all();
  begun.train();
  CHECK(begun.whole() == 0);
}

TEST_CASE("a node that joins a finished cluster takes its model, not the job's initial one") {
  const Schema schema = schema_of({3000, 40});
  const std::vector<float> initial = random_model(3040, 7);
  auto noise = std::make_shared<std::vector<Random>>();
  for (std::uint64_t i = 0; i < 3; ++i) noise->emplace_back(i + 1);
  VirtualCluster cluster(schema, [noise](std::size_t node, std::span<float> x, Step) {
    for (float& value : x)
      value += 0.02f + static_cast<float>(0.02 * ((*noise)[node].uniform() - 0.5));
  });
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options;
    if (i > 0) options.seeds = {0};
    if (i == 0) options.start = initial;
    options.initial = initial;
    options.budget = 6000;  // 94 steps each
    i == 2 ? cluster.add_off(options) : cluster.add(options);
  }
  const auto finished = [&] { return all_in(cluster, Phase::finished); };
  REQUIRE(cluster.run_until(finished, 60s));
  const std::vector<float> before(cluster.model(0).begin(), cluster.model(0).end());
  cluster.power_on(2);
  REQUIRE(cluster.run_until([&] { return cluster.node(2).phase() == Phase::finished; }, 60s));
  REQUIRE(cluster.run_until(finished, 60s));
  double moved = 0, norm = 0;
  for (std::size_t p = 0; p < before.size(); ++p) {
    moved += std::pow(static_cast<double>(cluster.model(0)[p] - before[p]), 2);
    norm += std::pow(static_cast<double>(before[p]), 2);
  }
  CHECK(std::sqrt(moved / norm) < 0.001);
}

TEST_CASE("a paused node stays paused when its model comes from a neighbour again") {
  const Schema schema = schema_of({3000});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 30s));
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.pause(now)); });
  cluster.run_for(2s);
  cluster.kill(1);
  cluster.restart(1, false);  // before its first checkpoint
  REQUIRE(cluster.run_until([&] { return cluster.node(1).phase() == Phase::paused; }, 30s));
  cluster.run_for(1s);
  const Step steps = cluster.steps(1);
  cluster.run_for(5s);
  CHECK(cluster.steps(1) == steps);
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.resume(now)); });
  CHECK(cluster.run_until([&] { return cluster.steps(1) > steps; }, 5s));
}

TEST_CASE("who has left is not told to resume, and stays paused until it is back") {
  const Schema schema = schema_of({300});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 30s));
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.pause(now)); });
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.leave(now)); });
  const auto refused = [&] {
    std::optional<Error> error;
    cluster.act(1, [&](Node& node, Instant now) { error = node.resume(now); });
    return error && error->code == "left";
  };
  CHECK(refused());  // on its way out
  REQUIRE(cluster.run_until([&] { return cluster.node(1).phase() == Phase::left; }, 30s));
  CHECK(refused());
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.join({}, now)); });
  REQUIRE(cluster.run_until([&] { return cluster.node(1).phase() == Phase::paused; }, 30s));
  cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.resume(now)); });
  CHECK(cluster.node(1).phase() == Phase::training);
}

TEST_CASE("steps that a lone node has lost are not told to who joins it later") {
  const Schema schema = schema_of({3000});
  VirtualCluster cluster(schema);
  cluster.add(with_model(schema, 0));
  cluster.run_for(5s);
  cluster.write_checkpoint(0);
  const Samples kept = cluster.samples(0);
  cluster.run_for(30s);
  cluster.kill(0);
  REQUIRE(cluster.disk(0).own_samples > kept + 1000);
  cluster.start_from_disk(0);
  NodeOptions late;
  late.seeds = {0};
  cluster.add(late);
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 60s));
  cluster.run_for(2s);
  REQUIRE(times_logged(cluster, 0, "event=steps-lost") == 1);
  CHECK(member(cluster.view(1), cluster.id(0))->record.samples <= cluster.samples(0));
}
