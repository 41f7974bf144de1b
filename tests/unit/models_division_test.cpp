// A set that nodes divide among themselves: who owns which bucket, what passes over the set visit,
// and where the trainer goes on.
#include "models/data/division.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/base/random.h"
#include "models_test_support.h"

using namespace gossipd;
using test::Desk;
using test::parse_job;

namespace {

constexpr std::uint32_t job_batch = 32;

std::vector<DivisionMember> members_with(const std::vector<std::uint32_t>& batches) {
  Random random(11);
  std::vector<DivisionMember> out;
  for (const std::uint32_t batch : batches) out.push_back({NodeId{random.next()}, batch});
  return out;
}

BucketOwners divided(std::size_t buckets, const std::vector<DivisionMember>& members) {
  BucketOwners owners(buckets, job_batch);
  owners.divide(members);
  return owners;
}

std::vector<NodeId> owners_of(const BucketOwners& owners) {
  std::vector<NodeId> out;
  for (std::size_t b = 0; b < owners.buckets(); ++b) out.push_back(owners.owner(b));
  return out;
}

double part_of(const BucketOwners& owners, NodeId id) {
  const std::vector<NodeId> all = owners_of(owners);
  return static_cast<double>(std::ranges::count(all, id)) / static_cast<double>(all.size());
}

// One node that walks a set of `set_samples`.
struct Walker {
  DivisionMember member;
  DataOrder order;
  Samples position = 0;
  bool there = true;

  Walker(DivisionMember m, std::uint64_t seed, std::size_t set_samples)
      : member(m), order(seed, set_samples, {}) {}
  std::vector<DataOrder::Visit> step() {
    std::vector<DataOrder::Visit> visits(member.batch);
    position = order.take(position, visits);
    return visits;
  }
};

// Nodes whose steps take equally long, and how often each sample was visited in each pass.
class Walkers {
 public:
  Walkers(std::size_t set_samples, const std::vector<std::uint32_t>& batches)
      : set_samples_(set_samples) {
    for (const DivisionMember& member : members_with(batches))
      all.emplace_back(member, 3, set_samples);
    divide();
  }
  void divide() {
    std::vector<DivisionMember> members;
    for (const Walker& walker : all)
      if (walker.there) members.push_back(walker.member);
    const BucketOwners owners = divided(buckets_of(set_samples_), members);
    for (Walker& walker : all)
      if (walker.there)
        walker.order.restrict_to(
            std::make_shared<std::vector<bool>>(owners.owned_by(walker.member.id)));
  }
  void step() {
    for (Walker& walker : all) {
      if (!walker.there) continue;
      total += walker.member.batch;
      for (const DataOrder::Visit& visit : walker.step())
        ++visits_[visit.position / set_samples_][visit.sample];
    }
  }
  // Until every node is beyond `passes` passes.
  void walk_to(Samples passes) {
    while (std::ranges::any_of(
        all, [&](const Walker& w) { return w.there && w.position < passes * set_samples_; }))
      step();
  }
  int visits(Samples pass, std::uint32_t sample) { return visits_[pass][sample]; }
  std::size_t samples_visited(Samples pass, int times) {
    std::size_t count = 0;
    for (std::uint32_t sample = 0; sample < set_samples_; ++sample)
      count += visits(pass, sample) == times ? 1 : 0;
    return count;
  }

  std::vector<Walker> all;
  Samples total = 0;

 private:
  std::size_t set_samples_;
  std::map<Samples, std::map<std::uint32_t, int>> visits_;
};

}  // namespace

TEST_CASE(
    "Every bucket has one owner, whatever the order of the members, and a node's buckets follow "
    "from who is there alone") {
  std::vector<DivisionMember> members = members_with({32, 32, 64, 8});
  const BucketOwners owners = divided(1000, members);
  std::size_t owned = 0;
  for (const DivisionMember& member : members) {
    const std::vector<bool> own = owners.owned_by(member.id);
    owned += static_cast<std::size_t>(std::ranges::count(own, true));
  }
  CHECK(owned == 1000);
  std::ranges::reverse(members);
  CHECK(owners_of(divided(1000, members)) == owners_of(owners));
  // By another way to the same members: no trace of those that were there before.
  BucketOwners later = divided(1000, members_with({5, 500, 64, 8, 70, 3}));
  later.divide(members_with({32}));
  later.divide(members);
  CHECK(owners_of(later) == owners_of(owners));
}

TEST_CASE(
    "The parts are as the batches, which count in quarter octaves, and the job's stands for one "
    "that is not known yet") {
  const std::vector<DivisionMember> members = members_with({16, 32, 0, 128});
  const BucketOwners owners = divided(division_buckets_max, members);
  const double total = 16 + 32 + 32 + 128;
  for (const auto& [i, batch] : {std::pair(0, 16), {1, 32}, {2, 32}, {3, 128}})
    CHECK(part_of(owners, members[static_cast<std::size_t>(i)].id) ==
          doctest::Approx(batch / total).epsilon(0.05));
  std::vector<DivisionMember> almost = members;
  almost[3].batch = 130;
  CHECK(owners_of(divided(division_buckets_max, almost)) == owners_of(owners));
  almost[3].batch = 160;
  CHECK(owners_of(divided(division_buckets_max, almost)) != owners_of(owners));
}

TEST_CASE(
    "Who goes leaves its buckets to all others and moves no other bucket; who comes takes from "
    "all") {
  std::vector<DivisionMember> members = members_with({32, 32, 32, 64, 16});
  const NodeId one = members[3].id;
  BucketOwners owners = divided(division_buckets_max, members);
  const std::vector<NodeId> with = owners_of(owners);
  const DivisionMember gone = members[3];
  members.erase(members.begin() + 3);
  owners.divide(members);
  const std::vector<NodeId> without = owners_of(owners);
  std::map<NodeId, int> heirs;
  for (std::size_t b = 0; b < with.size(); ++b) {
    if (with[b] == one)
      ++heirs[without[b]];
    else
      CHECK(with[b] == without[b]);
  }
  CHECK(heirs.size() == 4);
  for (const auto& [heir, buckets] : heirs) CHECK(buckets > 100);
  members.push_back(gone);
  owners.divide(members);
  CHECK(owners_of(owners) == with);
}

TEST_CASE("Samples are counted by bucket, the last ones too") {
  std::vector<bool> all(7, true);
  CHECK(samples_in(all, 30) == 30);
  std::vector<bool> some{true, false, true, false, false, false, true};
  CHECK(samples_in(some, 30) == 5 + 4 + 4);
  CHECK(buckets_of(5) == 5);
  CHECK(buckets_of(10'000'000) == division_buckets_max);
}

TEST_CASE(
    "A thousand members have about equal parts, and a set smaller than its members has owners "
    "too") {
  const std::vector<DivisionMember> members = members_with(std::vector<std::uint32_t>(1000, 32));
  const BucketOwners owners = divided(division_buckets_max, members);
  const std::vector<NodeId> ids = owners_of(owners);
  CHECK(std::set<NodeId>(ids.begin(), ids.end()).size() == 1000);
  BucketOwners few = divided(10, members);
  for (const NodeId owner : owners_of(few)) CHECK(owner != NodeId{});
  few.divide({});
  CHECK(few.owner(3) == NodeId{});
}

TEST_CASE("Steady members visit every sample exactly once in each pass") {
  for (const std::vector<std::uint32_t>& batches :
       {std::vector<std::uint32_t>{16}, {32, 8, 50}, {7, 32, 32, 64, 128, 9, 20}}) {
    constexpr std::size_t set_samples = 5003;
    Walkers walkers(set_samples, batches);
    walkers.walk_to(3);
    for (Samples pass = 0; pass < 3; ++pass) CHECK(walkers.samples_visited(pass, 1) == set_samples);
  }
}

TEST_CASE("A node that is alone walks the set as the one shard of one does") {
  Walkers walkers(1000, {10});
  DataOrder whole(3, 1000, {});
  std::vector<DataOrder::Visit> visits(2500), own(2500);
  CHECK(whole.take(17, visits) == 2517);
  CHECK(walkers.all[0].order.take(17, own) == 2517);
  CHECK(std::ranges::equal(visits, own, [](const auto& a, const auto& b) {
    return a.sample == b.sample && a.position == b.position;
  }));
}

TEST_CASE(
    "When a node goes in the middle of a pass others finish its part, but for as much as their "
    "places differ") {
  constexpr std::size_t set_samples = 60'000;
  Walkers walkers(set_samples, {32, 16, 64, 40});
  walkers.walk_to(1);
  while (walkers.all[0].position < set_samples + set_samples / 2) walkers.step();
  Samples least = ~Samples{0}, most = 0;
  for (const Walker& walker : walkers.all) {
    least = std::min(least, walker.position);
    most = std::max(most, walker.position);
  }
  const double apart = static_cast<double>(most - least);
  CHECK(apart < 0.2 * set_samples);  // the parts are not exactly as the batches
  walkers.all[2].there = false;      // had 64 of 152
  walkers.divide();
  walkers.walk_to(3);
  CHECK(walkers.samples_visited(0, 1) == set_samples);
  const std::size_t left_out = walkers.samples_visited(1, 0), twice = walkers.samples_visited(1, 2);
  CHECK(walkers.samples_visited(1, 1) + left_out + twice == set_samples);
  CHECK(static_cast<double>(left_out + twice) <= 0.5 * apart);
  CHECK(walkers.samples_visited(2, 1) == set_samples);
}

TEST_CASE(
    "A node that comes where the cluster is takes over its part, but for as much as their places "
    "differ") {
  constexpr std::size_t set_samples = 60'000;
  Walkers walkers(set_samples, {32, 32, 32});
  walkers.all[2].there = false;
  walkers.divide();
  while (walkers.total < set_samples / 3) walkers.step();
  walkers.all[2].there = true;
  walkers.all[2].position = walkers.total;
  double apart = 0;
  for (const Walker& walker : walkers.all)
    apart = std::max(
        apart, std::abs(static_cast<double>(walker.position) - static_cast<double>(walkers.total)));
  walkers.divide();
  walkers.walk_to(2);
  CHECK(static_cast<double>(set_samples - walkers.samples_visited(0, 1)) <= 0.5 * apart);
  CHECK(walkers.samples_visited(1, 1) == set_samples);
}

// ---- the trainer ----

namespace {

constexpr Samples toy_samples = 1000;
constexpr NodeId self{5};
constexpr Step never = Step{1} << 60;

// Remembers where it was at each step.
class WalkingEngine : public Engine {
 public:
  explicit WalkingEngine(std::shared_ptr<std::vector<Samples>> starts)
      : starts_(std::move(starts)), order_(1, toy_samples, {}) {
    schema_ = *Schema::build({{"w", {1}, 0, 1, SegmentKind::parameter}});
  }
  const Schema& schema() const override { return schema_; }
  std::string device() const override { return "toy"; }
  Samples shard_samples() const override { return toy_samples; }
  void prepare_thread(int) override {}
  double step(Samples position, double, std::uint32_t batch) override {
    starts_->push_back(position);
    std::vector<DataOrder::Visit> visits(batch);
    next_ = order_.take(position, visits);
    for (const DataOrder::Visit& visit : visits)
      model_ += static_cast<float>(visit.sample % 7) * 0.01f;
    return 1;
  }
  Samples next_position(Samples, std::uint32_t) const override { return next_; }
  void restrict_to(BucketSet buckets) override { order_.restrict_to(std::move(buckets)); }
  void copy_model(std::span<float> out) override { out[0] = model_; }
  void add_to_model(std::span<const float> values) override { model_ += values[0]; }
  void replace_model(std::span<const float> values) override { model_ = values[0]; }
  OptimizerState optimizer_state() override { return {.momentum = {0}}; }
  void restore_optimizer(const OptimizerState&) override {}
  std::optional<Figures> evaluate(std::span<const float>, const std::atomic<bool>&) override {
    return std::nullopt;
  }

 private:
  std::shared_ptr<std::vector<Samples>> starts_;
  Schema schema_;
  DataOrder order_;
  Samples next_ = 0;
  float model_ = 0;
};

// A trainer that takes as many steps as it is told to, by its budget.
struct Bench {
  std::shared_ptr<std::vector<Samples>> starts = std::make_shared<std::vector<Samples>>();
  Desk desk;
  std::unique_ptr<Trainer> trainer;
  Samples others = 0;

  explicit Bench(const std::string& division = "shared") {
    const Job job =
        parse_job("name = 'toy'\nbatch = 10\nbudget_samples = 1000000000\n[data]\ndivision = '" +
                  division + "'\n");
    TrainerOptions options;
    options.node = self;
    options.nice = 0;
    trainer = Trainer::with_engine(job, options, std::make_unique<WalkingEngine>(starts));
  }
  void others_have(Samples samples) { trainer->set_others_samples(others = samples); }
  Snapshot run(Step steps, std::optional<std::vector<DivisionMember>> division = std::nullopt) {
    if (division) trainer->set_division(*division);
    trainer->set_budget(trainer->status().samples + others + 10 * steps);
    trainer->start(desk.callbacks(), true);
    trainer->give({{0}, false, never, true});
    Snapshot snapshot = desk.snapshot();
    trainer->stop();
    return snapshot;
  }
  Samples place() const { return trainer->status().data_position; }
};

const DivisionMember me{self, 10}, other{NodeId{6}, 10}, third{NodeId{7}, 10};

}  // namespace

TEST_CASE("A trainer walks its own part of a shared set and says how large it is") {
  Bench bench;
  bench.run(1, {{me}});
  CHECK(bench.trainer->status().division->buckets_owned == 1000);
  const Step steps = bench.trainer->status().step;
  CHECK(bench.place() == 10 * steps);
  bench.run(200, {{me, other}});
  const DivisionStatus division = *bench.trainer->status().division;
  CHECK(division.members == 2);
  CHECK(division.buckets == 1000);
  CHECK(division.samples == toy_samples);
  CHECK(division.buckets_owned == division.samples_owned);
  CHECK(division.buckets_owned > 400);
  CHECK(division.buckets_owned < 600);
  // Over many passes its own part decides how far it gets.
  const double walked = static_cast<double>(bench.place() - 10 * steps);
  const double visited = 10.0 * static_cast<double>(bench.trainer->status().step - steps);
  CHECK(visited / walked ==
        doctest::Approx(static_cast<double>(division.buckets_owned) / 1000).epsilon(0.05));
  bench.run(1, {{other}});
  CHECK(bench.trainer->status().division->buckets_owned == 0);
}

TEST_CASE("A node that comes begins where the cluster is, one that is alone goes on where it was") {
  Bench joiner;
  joiner.others_have(4321);
  joiner.run(1, {{me, other}});
  CHECK(joiner.starts->front() == 4321);
  Bench close_by;
  close_by.others_have(50);
  close_by.run(1, {{me, other}});
  CHECK(close_by.starts->front() == 50);
  Bench alone;
  alone.others_have(4321);
  alone.run(1, {{me}});
  CHECK(alone.starts->front() == 0);
}

TEST_CASE(
    "A node that was away and one far behind go where the cluster is when somebody comes; one a "
    "little behind does not skip") {
  Bench bench;
  bench.run(3, {{me}});
  const Samples alone = bench.place();
  bench.others_have(toy_samples / 10);  // less than an eighth of a pass
  bench.starts->clear();
  bench.run(3, {{me, other}});
  CHECK(bench.starts->front() == alone);
  bench.others_have(100 * toy_samples);
  bench.starts->clear();
  const Samples before = bench.place();
  bench.run(1, {{me}});  // nobody comes: what others do is no reason to move
  CHECK(bench.starts->front() == before);
  bench.starts->clear();
  const Samples cluster = bench.trainer->status().samples + 100 * toy_samples;
  bench.run(1, {{me, third}});
  CHECK(bench.starts->front() == cluster);
  bench.run(1, {{other, third}});  // paused, as it were
  bench.others_have(200 * toy_samples);
  bench.starts->clear();
  const Samples now = bench.trainer->status().samples + 200 * toy_samples;
  bench.run(1, {{me, other, third}});
  CHECK(bench.starts->front() == now);
}

TEST_CASE("A node never goes back to where the others are") {
  Bench bench;
  // and the other has done nothing: the cluster's count is half of this node's place
  bench.run(400, {{me, other}});
  const Samples place = bench.place();
  CHECK(place > 1.5 * static_cast<double>(bench.trainer->status().samples));
  bench.run(0, {{other}});
  bench.starts->clear();
  bench.run(1, {{me, other}});
  CHECK(bench.starts->front() == place);
}

TEST_CASE("A node that no bucket falls to trains on all of the set") {
  std::vector<DivisionMember> members{me};
  for (std::uint64_t i = 0; i < 3; ++i) members.push_back({NodeId{100 + i}, 60'000});
  members[0].batch = 1;
  Random random(1);
  while (true) {  // until the others have every bucket
    const BucketOwners owners = divided(toy_samples, members);
    if (std::ranges::count(owners.owned_by(self), true) == 0) break;
    members.push_back({NodeId{random.next()}, 60'000});
    REQUIRE(members.size() < 100);
  }
  Bench bench;
  bench.run(1, members);
  CHECK(bench.trainer->status().division->buckets_owned == 0);
  CHECK(bench.place() == 10 * bench.trainer->status().step);
}

TEST_CASE("A restored trainer goes on with the same samples of its part, bit for bit") {
  const test::TemporaryDirectory directory;
  Bench whole;
  whole.run(30, {{me, other, third}});
  whole.trainer->write_checkpoint({directory / "c.safetensors",
                                   {},
                                   CheckpointRequest::Model::current,
                                   whole.desk.on_written()});
  REQUIRE(whole.desk.written());
  const auto loaded = load_checkpoint(directory / "c.safetensors", whole.trainer->schema());
  REQUIRE(loaded);
  CHECK(loaded->checkpoint.data_position == whole.place());
  CHECK(loaded->checkpoint.data_position > 2 * loaded->checkpoint.samples);
  Bench resumed;
  REQUIRE(!resumed.trainer->restore(loaded->checkpoint));
  whole.starts->clear();
  const Snapshot want = whole.run(40);
  const Snapshot got = resumed.run(40, {{me, other, third}});
  CHECK(got.step == loaded->checkpoint.step + 40);
  CHECK(*resumed.starts == *whole.starts);
  CHECK(got.model == want.model);
  CHECK(resumed.place() == whole.place());
}

TEST_CASE("Where nodes have data of their own a division changes nothing") {
  Bench bench("own");
  bench.others_have(4321);
  bench.run(2, {{me, other}});
  CHECK(!bench.trainer->status().division);
  CHECK(bench.place() == 10 * bench.trainer->status().step);
}
