// What belongs to a job beside the model: its file, and a budget that changes.
#include "core/wire/file_piece.h"
#include "tests/sim/support.h"

using namespace gossipd;
using namespace gossipd::sim;
using namespace std::chrono_literals;

namespace {

Bytes content_of(std::size_t bytes) {
  Random random(bytes);
  Bytes out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random.next());
  return out;
}

JobFile named(const Bytes& content) { return JobFile{7, 9, content.size()}; }

NodeOptions short_job(const Schema& schema, std::size_t index) {
  NodeOptions options = with_model(schema, index);
  options.budget = 32 * 300;
  return options;
}

// Node 1 belongs to node 0's cluster and does not have its job yet.
struct JobOnTheWay {
  JobOnTheWay() {
    cluster.add(with_model(schema, 0));
    NodeOptions joiner = with_model(schema, 1);
    joiner.seeds = {0};
    joiner.knows_job = false;
    joiner.start.clear();
    (void)cluster.add_off(joiner);
    cluster.network().way(0, 1) = cluster.network().way(1, 0) = {.latency = 1s};
    cluster.power_on(1);
    REQUIRE(cluster.run_until([&] { return cluster.disk(1).cluster != ClusterId{}; }, 30s));
    REQUIRE(cluster.disk(1).job == JobHash{});
  }
  const Schema schema = schema_of({100});
  VirtualCluster cluster{schema};
};

// Four members, of which the last has no file.
struct Sharers {
  Sharers() {
    for (std::size_t i = 0; i < 4; ++i) cluster.add(with_model(schema, i));
    cluster.run_for(5s);
  }
  // The last one wants it, and gets a file of its length.
  void fetch() {
    cluster.want_file(3, named(content));
    REQUIRE(cluster.run_until([&] { return got().size() == content.size(); }, 60s));
  }
  [[nodiscard]] const Bytes& got() { return cluster.file(3); }

  const Schema schema = schema_of({100});
  const Bytes content = content_of(3 * file_piece_bytes_max + 12345);
  VirtualCluster cluster{schema};
};

}  // namespace

TEST_CASE("a job's file comes whole from a member that has it, whoever is asked first") {
  for (std::size_t holder = 0; holder < 3; ++holder) {
    Sharers s;
    s.cluster.put_file(holder, s.content);
    s.fetch();
    CHECK(s.got() == s.content);
  }
}

TEST_CASE("a job's file comes whole though all members but one send it with another content") {
  for (std::size_t honest = 0; honest < 3; ++honest) {
    Sharers s;
    for (std::size_t i = 0; i < 3; ++i) s.cluster.put_file(i, s.content);
    s.cluster.tamper([honest](std::size_t from, std::size_t, Lane lane, Bytes& message) {
      if (lane == Lane::bulk && is_file_piece(message) && from != honest)
        message.back() ^= std::byte{1};
      return true;
    });
    for (int tries = 0; tries < 3 && s.got() != s.content; ++tries) s.fetch();
    CHECK(s.got() == s.content);
  }
}

TEST_CASE("a joiner hands on the job's document before the first state that names the job") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  bool document = false, state = false;
  Hooks hooks;
  hooks.effects = [&](std::size_t node, std::vector<Effect>& effects) {
    if (node != 1) return;
    for (const Effect& effect : effects) {
      if (std::holds_alternative<JobEffect>(effect)) document = true;
      const auto* persisted = std::get_if<PersistEffect>(&effect);
      if (persisted == nullptr || persisted->state.job == JobHash{}) continue;
      state = true;
      CHECK(document);
    }
  };
  cluster.set_hooks(std::move(hooks));
  cluster.add(with_model(schema, 0));
  NodeOptions joiner;
  joiner.seeds = {0};
  joiner.knows_job = false;
  cluster.add(joiner);
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 30s));
  CHECK(state);
}

TEST_CASE("a member whose job is still on the way takes none from a stranger") {
  JobOnTheWay f;
  VirtualCluster& cluster = f.cluster;
  NodeOptions stranger = with_model(f.schema, 2);
  stranger.seeds = {1};
  cluster.whole_disk(cluster.add_off(stranger)).job_document = "another";
  cluster.power_on(2);
  cluster.run_for(500ms);
  REQUIRE(cluster.disk(1).job == JobHash{});
  CHECK(has_refusal(cluster.view(1), "no-job", true));
  REQUIRE(cluster.run_until([&] { return cluster.disk(1).job != JobHash{}; }, 30s));
  CHECK(cluster.disk(1).job == cluster.disk(0).job);
  CHECK(cluster.disk(2).cluster == ClusterId{});
}

TEST_CASE("nor does one with the same job wait long, or for that member") {
  JobOnTheWay f;
  VirtualCluster& cluster = f.cluster;
  NodeOptions late = with_model(f.schema, 2);
  late.seeds = {1};
  late.start.clear();
  (void)cluster.add_off(late);
  cluster.power_on(2);
  cluster.run_for(500ms);
  CHECK(has_refusal(cluster.view(2), "no-job", false));
  // the member has named the founder, which knows the job
  CHECK(cluster.disk(2).cluster == cluster.disk(0).cluster);
  cluster.kill(1);
  REQUIRE(cluster.run_until([&] { return cluster.node(2).phase() == Phase::training; }, 20s));
}

TEST_CASE(
    "a job's file comes whole although every session breaks on the way, and when its holder "
    "appears late") {
  const Schema schema = schema_of({100});
  const Bytes content = content_of(8 * file_piece_bytes_max);
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(5s);
  cluster.want_file(2, named(content));
  cluster.run_for(20s);
  REQUIRE(cluster.file(2).empty());
  cluster.put_file(0, content);
  REQUIRE(
      cluster.run_until([&] { return cluster.file(2).size() >= 2 * file_piece_bytes_max; }, 60s));
  REQUIRE(cluster.file(2).size() < content.size());
  cluster.cut_after(cluster.messages() + 1);
  REQUIRE(cluster.run_until([&] { return cluster.file(2).size() == content.size(); }, 120s));
  CHECK(cluster.file(2) == content);
}

TEST_CASE(
    "a piece of a file that is too long or makes no sense changes nothing, and its sender is "
    "refused") {
  const Schema schema = schema_of({100});
  const Bytes content = content_of(1000);
  for (const bool nonsense : {false, true}) {
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < 2; ++i) cluster.add(with_model(schema, i));
    cluster.run_for(5s);
    cluster.put_file(0, content);
    cluster.tamper([nonsense](std::size_t, std::size_t, Lane lane, Bytes& message) {
      if (lane != Lane::bulk || !is_file_piece(message)) return true;
      if (nonsense)
        message[1] = std::byte{1};
      else
        message.push_back(std::byte{0});
      return true;
    });
    cluster.want_file(1, named(content));
    REQUIRE(
        cluster.run_until([&] { return has_refusal(cluster.view(1), "malformed", true); }, 60s));
    CHECK(cluster.file(1).empty());
  }
}

TEST_CASE(
    "a budget that is extended after the end is known to all, also to who joins later, and is "
    "trained to its end") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(short_job(schema, i));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
  const Samples before = cluster.view(0).cluster_samples;
  CHECK_FALSE(cluster.node(1).extend_budget(32 * 200, cluster.now()));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 30s));
  const Samples budget = before + 32 * 200;
  for (std::size_t i = 0; i < 3; ++i) CHECK(cluster.view(i).budget_samples == budget);
  cluster.add(short_job(schema, 3));
  REQUIRE(cluster.run_until([&] { return cluster.view(3).budget_samples == budget; }, 30s));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
  CHECK(cluster.view(0).cluster_samples >= budget);
  cluster.kill(0);
  cluster.restart(0);
  CHECK(cluster.view(0).budget_samples == budget);
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
  cluster.act(3, [](Node& node, Instant now) { CHECK_FALSE(node.leave(now)); });
  REQUIRE(cluster.run_until([&] { return cluster.view(3).phase == Phase::left; }, 30s));
  CHECK(cluster.node(3).extend_budget(32, cluster.now())->code == "left");
}

TEST_CASE("two extensions at once leave every node with the same budget, the larger") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) cluster.add(with_model(schema, i));
  cluster.run_for(5s);
  CHECK_FALSE(cluster.node(0).extend_budget(1000, cluster.now()));
  CHECK_FALSE(cluster.node(2).extend_budget(900'000, cluster.now()));
  const Samples larger = std::max(cluster.view(0).budget_samples, cluster.view(2).budget_samples);
  cluster.run_for(5s);
  for (std::size_t i = 0; i < 3; ++i) CHECK(cluster.view(i).budget_samples == larger);
}

TEST_CASE("a node that ends early ends the job for all, and an extension sets it going again") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  for (std::size_t i = 0; i < 3; ++i) {
    NodeOptions options = short_job(schema, i);
    options.budget = 1'000'000'000;
    cluster.add(options);
  }
  cluster.run_for(10s);
  cluster.node(1).end_early("no progress", cluster.now());
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
  CHECK(cluster.view(2).budget_samples < 1'000'000'000);
  CHECK_FALSE(cluster.node(2).extend_budget(32 * 100, cluster.now()));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::training); }, 30s));
  REQUIRE(cluster.run_until([&] { return all_in(cluster, Phase::finished); }, 120s));
}

TEST_CASE("a budget cannot be extended by nothing, or beyond what can be counted") {
  const Schema schema = schema_of({100});
  VirtualCluster cluster(schema);
  cluster.add(short_job(schema, 0));
  CHECK(cluster.node(0).extend_budget(0, cluster.now())->code == "bad-budget");
  CHECK(cluster.node(0).extend_budget(~Samples{0}, cluster.now())->code == "bad-budget");
}

TEST_CASE(
    "a node whose trainer has stopped stops as well, though the estimate that told it so has come "
    "down since") {
  const Schema schema = schema_of({10});
  std::uint64_t vain = 0;
  for (Samples steps = 300; steps < 500; steps += 5) {
    VirtualCluster cluster(schema);
    for (std::size_t i = 0; i < 3; ++i) {
      NodeOptions options = with_model(schema, i);
      options.budget = options.trainer_budget = steps * 32;
      // stats older than that are made up for by the speed of before
      options.membership.suspect_after = 300ms;
      cluster.add(options);
    }
    // Speeds that change all the time make that now too much and now too little.
    for (bool slow = false; !all_in(cluster, Phase::finished) && cluster.now() < Instant{} + 2000s;
         slow = !slow) {
      for (std::size_t i = 0; i < 3; ++i) cluster.set_speed(i, slow ? 5ms : 0ms);
      cluster.run_for(700ms);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(cluster.node(i).phase() == Phase::finished);
      vain = std::max(vain, cluster.vain_updates(i));
    }
  }
  CHECK(vain <= 2);  // a trainer may stop a moment before its node looks
}
