// A member with the key that lies about itself and others costs only its own share.
#include <limits>
#include <utility>

#include "core/wire/control.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t all_ones = ~std::uint64_t{0};
constexpr std::size_t honest_nodes = 3, liar = 3;

// How nodes 1 and 2 come to their models.
enum class Start { own_model, joiner };

// Four nodes; `lie` changes the next `lies_left` messages of the last one about members.
struct LyingCluster {
  Schema schema = schema_of({100});
  VirtualCluster cluster{schema};
  std::function<void(Members&)> lie;
  std::size_t lies_left = std::numeric_limits<std::size_t>::max(), lies_told = 0;

  explicit LyingCluster(Samples budget = 0, Start start = Start::own_model) {
    for (std::size_t i = 0; i <= liar; ++i) {
      NodeOptions options = with_model(schema, i);
      if (start == Start::joiner && i > 0 && i < liar) options.start.clear();
      options.budget = budget;
      cluster.add(options);
    }
    cluster.run_for(20s);
    cluster.tamper([this](std::size_t from, std::size_t, Lane lane, Bytes& message) {
      if (from != liar || lane != Lane::control || !lie || lies_left == 0) return true;
      Result<Control> control = decode_control(message);
      auto* members = control ? std::get_if<Members>(&*control) : nullptr;
      if (members == nullptr) return true;
      lie(*members);
      --lies_left, ++lies_told;
      message = encode_control(*control);
      return true;
    });
  }
  // The liar's version of a trusted member's record.
  [[nodiscard]] MemberRecord record_of(std::size_t node) const {
    return member(cluster.view(liar), cluster.id(node))->record;
  }
  void tell_once(const MemberRecord& record) {
    lie = [record](Members& members) { members.records.push_back(record); };
    lies_left = honest_nodes + 1;
    cluster.run_for(10s);
    REQUIRE(lies_left == 0);
  }
  [[nodiscard]] bool all_hold(std::size_t of, MemberState state) const {
    for (std::size_t i = 0; i < honest_nodes; ++i)
      if (member(cluster.view(i), cluster.id(of))->record.state != state) return false;
    return true;
  }
};

}  // namespace

TEST_CASE(
    "who is said to have left in the last of all lives is still there, and leaves and joins as its "
    "operator wants") {
  for (const std::uint64_t incarnation : {all_ones, all_ones - 1, std::uint64_t{1} << 63,
                                          std::uint64_t{1} << 62, std::uint64_t{1} << 40}) {
    CAPTURE(incarnation);
    LyingCluster lying;
    VirtualCluster& cluster = lying.cluster;
    MemberRecord record = lying.record_of(1);
    record.incarnation = incarnation;
    record.state = MemberState::left;
    lying.tell_once(record);
    CHECK(cluster.node(1).phase() == Phase::training);
    CHECK(lying.all_hold(1, MemberState::alive));
    cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.leave(now)); });
    REQUIRE(cluster.run_until([&] { return lying.all_hold(1, MemberState::left); }, 30s));
    cluster.act(1, [](Node& node, Instant now) { CHECK_FALSE(node.join({}, now)); });
    CHECK(cluster.run_until([&] { return lying.all_hold(1, MemberState::alive); }, 30s));
  }
}

TEST_CASE("a member suspected in its last incarnation lives on") {
  LyingCluster lying;
  VirtualCluster& cluster = lying.cluster;
  lying.lie = [&](Members& members) {
    members.suspicions.push_back({cluster.id(1), all_ones, cluster.id(liar)});
  };
  cluster.run_for(30s);
  CHECK(lying.lies_told > 0);
  CHECK(lying.all_hold(1, MemberState::alive));
  CHECK(cluster.view(1).incarnation < 1000);
}

TEST_CASE(
    "a budget of the last of all revisions does not end the job, and an operator's extension is in "
    "force everywhere") {
  for (const auto& [revision, start] : {std::pair{all_ones, Start::own_model},
                                        {std::uint64_t{1} << 62, Start::own_model},
                                        {std::uint64_t{1} << 40, Start::own_model},
                                        {std::uint64_t{1} << 32, Start::joiner}}) {
    CAPTURE(revision);
    LyingCluster lying(1'000'000, start);
    VirtualCluster& cluster = lying.cluster;
    MemberRecord record = lying.record_of(liar);
    record.budget = Budget{revision, 1};
    record.tick += 100;
    record.news = record.tick;
    lying.tell_once(record);
    for (std::size_t i = 0; i < honest_nodes; ++i)
      CHECK(cluster.node(i).phase() == Phase::training);
    cluster.act(0,
                [](Node& node, Instant now) { CHECK_FALSE(node.extend_budget(1'000'000, now)); });
    CHECK(cluster.run_until(
        [&] {
          for (std::size_t i = 0; i < honest_nodes; ++i)
            if (cluster.view(i).budget_samples != 2'000'000) return false;
          return true;
        },
        30s));
  }
}

TEST_CASE("a node never believes that it trained on more than it can have") {
  for (const Samples samples : {all_ones, Samples{1} << 62, Samples{1'000'000'000}}) {
    CAPTURE(samples);
    LyingCluster lying(1'000'000'000);
    VirtualCluster& cluster = lying.cluster;
    MemberRecord record = lying.record_of(1);
    record.samples = samples;
    lying.tell_once(record);
    CHECK(cluster.view(1).own_samples <= cluster.samples(1));
    for (std::size_t i = 0; i < honest_nodes; ++i)
      CHECK(cluster.node(i).phase() == Phase::training);
  }
}

TEST_CASE("one member's claimed samples neither end the job nor drive the schedule to its end") {
  constexpr Samples budget = 32 * 100 * 4 * 600;  // ten minutes of four nodes
  Start start{};
  SUBCASE("with models of their own") { start = Start::own_model; }
  SUBCASE("with the founder's model") { start = Start::joiner; }
  LyingCluster lying(budget, start);
  VirtualCluster& cluster = lying.cluster;
  lying.lie = [&](Members& members) {
    for (MemberRecord& record : members.records)
      if (record.id == cluster.id(liar)) record.samples = all_ones;
    for (MemberStats& stats : members.stats)
      if (stats.id == cluster.id(liar))
        stats.samples = Samples{1} << 62, stats.samples_per_second = 1e30;
  };
  cluster.run_for(40s);
  CHECK(lying.lies_told > 0);
  for (std::size_t i = 0; i < honest_nodes; ++i) {
    const NodeView view = cluster.view(i);
    CHECK(view.phase == Phase::training);
    // A tenth of the budget's time has passed; the liar counts as at most that many others.
    CHECK(view.cluster_samples_estimate < budget / 2);
    CHECK(view.cluster_samples_estimate >= 3 * cluster.samples(i) * 9 / 10);
  }
}

TEST_CASE("a member whose stats are said to be the last of all is heard again") {
  LyingCluster lying;
  VirtualCluster& cluster = lying.cluster;
  MemberRecord record = lying.record_of(1);
  record.tick = record.news = (std::uint64_t{1} << 62) - 1;
  record.samples_per_second = 1e9;
  record.name = "a lie";
  record.address = Endpoint{"node9", 1};
  lying.tell_once(record);
  for (std::size_t i = 0; i < honest_nodes; ++i) {
    const MemberRecord seen = member(cluster.view(i), cluster.id(1))->record;
    CHECK(seen.name == "node1");
    CHECK(seen.address == VirtualCluster::endpoint(1));
    CHECK(seen.step + 500 > cluster.steps(1));
    CHECK(seen.samples_per_second < 1e6);
  }
}
