// The exchange of whole models with several threads: every byte that is said, every replica, every
// sum and every update is that of one thread.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>

#include "core/base/protocol.h"
#include "core/node/exchange_round.h"
#include "tests/unit/core_workers.h"

using namespace gossipd;

namespace {

using Floats = std::vector<float>;

constexpr int rounds = 10;

Instant at(double s) { return Instant{} + from_seconds(s); }

// Segments of very unlike sizes: many blocks of a few floats, and some of several blocks.
Schema random_schema(Random& random) {
  std::vector<Segment> segments;
  std::uint64_t offset = 0;
  const std::size_t count = 20 + random.below(30);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t size =
        1 + (random.below(6) == 0 ? random.below(3 * block_floats_max) : random.below(3000));
    const SegmentKind kind = random.below(8) == 0 ? SegmentKind::statistic : SegmentKind::parameter;
    segments.push_back(Segment{.name = "s" + std::to_string(i),
                               .shape = {static_cast<std::int64_t>(size)},
                               .offset = offset,
                               .size = size,
                               .kind = kind});
    offset += size;
  }
  auto schema = Schema::build(std::move(segments));
  REQUIRE(schema);
  return *schema;
}

// One node's part: its round, its end of the link, and a trainer whose steps follow from a seed.
struct End {
  const Schema& schema;
  ExchangePolicy policy;
  Directory directory;
  Random random{1};
  TransferGuard guard;
  ExchangeRound round;
  NodeId peer;
  Link link;
  Random steps;
  Floats model;
  Step step = 0;
  std::vector<SharedBytes> outbox;
  std::vector<std::uint64_t> said;  // a hash of each message

  End(NodeId self, NodeId other, const Schema& s, const ExchangePolicy& p, Workers* workers)
      : schema(s),
        policy(p),
        directory(self),
        guard(policy.guard.transfer_reach, schema.blocks().size()),
        round(policy, schema, workers),
        peer(other),
        link(self, other, schema, policy, &guard, workers),
        steps(raw(self)),
        model(schema.floats()) {
    MemberRecord record;
    record.id = self;
    record.incarnation = 1;
    directory.set_self(std::move(record), true, at(0));
    Random weights(7);
    for (float& x : model) x = static_cast<float>(weights.uniform() - 0.5);
    round.prepare(make_round_buffers(schema.floats()), Step{0});
    apply(round.begin(true));
  }

  void apply(Update update) {
    for (std::size_t i = 0; i < model.size(); ++i)
      model[i] = update.replace ? update.values[i] : model[i] + update.values[i];
    buffer = std::move(update.values);
  }

  void train_and_look(double now) {
    Snapshot snapshot;
    for (float& x : model) x += static_cast<float>(0.02 * (steps.uniform() - 0.5));
    std::ranges::copy(model, buffer.begin());
    snapshot.model = std::move(buffer);
    snapshot.step = ++step;
    snapshot.learning_rate = snapshot.learning_rate_peak = 0.1;
    snapshot.step_seconds = 0.01;
    round.on_snapshot(std::move(snapshot), 1, at(now));
    std::vector<RoundLink> links{{.peer = peer, .link = link, .connected = true}};
    const RoundContext context{.now = at(now),
                               .phase = Phase::training,
                               .links = links,
                               .directory = directory,
                               .random = random};
    round.begin_if_due(context);
    while (round.has_work()) {
      RoundOutcome outcome = round.work(context);
      for (auto& [to, message] : outcome.messages) {
        said.push_back(hash_of(*message));
        outbox.push_back(std::move(message));
      }
      REQUIRE(outcome.kind != RoundOutcome::Kind::broken);
      if (outcome.kind != RoundOutcome::Kind::under_way) apply(std::move(outcome.update));
    }
  }

  static std::uint64_t hash_of(const Bytes& bytes) {
    Floats padded((bytes.size() + 3) / 4);
    std::memcpy(padded.data(), bytes.data(), bytes.size());
    return kernels().hash(padded);
  }

  void hear(End& from, double now) {
    for (const SharedBytes& message : std::exchange(from.outbox, {}))
      REQUIRE_FALSE(link.on_turn(*message, 0, at(now)));
  }

  Floats buffer;
};

// All that two ends have come to.
struct Outcome {
  std::vector<std::uint64_t> said, replicas;
  std::vector<double> sums;
  Floats models;
  bool operator==(const Outcome&) const = default;
};

Outcome exchange(const Schema& schema, const ExchangePolicy& policy, Workers* workers) {
  End a(NodeId{1}, NodeId{2}, schema, policy, workers);
  End b(NodeId{2}, NodeId{1}, schema, policy, workers);
  Ready mine, theirs;
  mine.has_model = theirs.has_model = true;
  mine.nonce = 5, theirs.nonce = 6;
  a.link.describe(mine), b.link.describe(theirs);
  REQUIRE_FALSE(a.link.open(mine, theirs, protocol_version));
  REQUIRE_FALSE(b.link.open(theirs, mine, protocol_version));
  for (int i = 1; i <= rounds; ++i) {
    a.train_and_look(i), b.hear(a, i);
    b.train_and_look(i + 0.5), a.hear(b, i + 0.5);
  }
  Outcome result;
  for (End* end : {&a, &b}) {
    result.said.insert(result.said.end(), end->said.begin(), end->said.end());
    for (std::size_t i = 0; i < schema.blocks().size(); ++i) {
      result.replicas.push_back(end->link.hash_of(Link::Which::published, i));
      result.replicas.push_back(end->link.hash_of(Link::Which::received, i));
    }
    const ExchangeCounters& counters = end->link.counters();
    CHECK(counters.turns_spoken >= 2);
    CHECK(counters.deltas_sent > schema.blocks().size());
    for (const double sum : {counters.change, counters.transfer, counters.consensus_distance,
                             static_cast<double>(counters.bytes_sent)})
      result.sums.push_back(sum);
    for (const double way : end->round.own_steps().travelled()) result.sums.push_back(way);
    result.models.insert(result.models.end(), end->model.begin(), end->model.end());
  }
  return result;
}

}  // namespace

TEST_CASE("models exchanged with one, two or three threads are the same to the last bit") {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    Random random(seed);
    const Schema schema = random_schema(random);
    ExchangePolicy policy;
    policy.period_steps = policy.round_steps = 1;
    policy.entry_threshold = seed == 1 ? 0 : 1;  // of these changes about a half
    if (seed == 2) policy.codec = Codec{CodecId::int8};
    // Whole models fill the way out, and a turn goes on in a later round.
    if (seed == 3) policy.bulk_window_bytes = 256 * 1024;
    const Outcome alone = exchange(schema, policy, nullptr);
    for (const std::size_t threads : {1u, 2u, 3u}) {
      CAPTURE(threads);
      ManyThreads workers(threads);
      const Outcome together = exchange(schema, policy, &workers);
      CHECK(workers.calls() > 0);
      CHECK(together.said == alone.said);
      CHECK(together.replicas == alone.replicas);
      CHECK(together.sums == alone.sums);
      CHECK(together.models == alone.models);
    }
  }
}

TEST_CASE("replicas in bf16 are the same with several threads as well") {
  Random random(4);
  const Schema schema = random_schema(random);
  ExchangePolicy policy;
  policy.period_steps = policy.round_steps = 1;
  policy.replicas = ReplicaFormat::bf16;
  policy.entry_threshold = 1;
  const Outcome alone = exchange(schema, policy, nullptr);
  ManyThreads workers(3);
  CHECK(exchange(schema, policy, &workers) == alone);
}

TEST_CASE("a value that is not finite breaks a round off at the same block with several threads") {
  Random random(5);
  const Schema schema = random_schema(random);
  const std::size_t blocks = schema.blocks().size();
  const std::size_t bad = blocks / 2;
  const auto say_until_it_breaks = [&](Workers* workers, std::size_t at_once) {
    ExchangePolicy policy;
    Link link(NodeId{1}, NodeId{2}, schema, policy, nullptr, workers);
    Ready mine, theirs;
    mine.has_model = theirs.has_model = true;
    mine.nonce = 5, theirs.nonce = 6;
    REQUIRE_FALSE(link.open(mine, theirs, protocol_version));
    Floats model(schema.floats(), 0.5f), update(schema.floats());
    model[schema.blocks()[bad].offset] = std::numeric_limits<float>::quiet_NaN();
    link.look_begin({}, 0.01, {}, at(1));
    for (std::size_t i = 0; i < blocks; ++i) link.look(i, model, update, {});
    link.begin({.codec = {CodecId::int8}}, at(1));
    while (link.speak(model, update, {}, at(1), std::min(at_once, link.blocks_left()))) {
    }
    return std::pair(link.next_block(), link.counters().keyframes_sent);
  };
  ManyThreads workers(3);
  CHECK(say_until_it_breaks(nullptr, 1) == std::pair(bad, std::uint64_t{bad}));
  CHECK(say_until_it_breaks(&workers, 7) == std::pair(bad, std::uint64_t{bad}));
}
