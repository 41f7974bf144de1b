// A snapshot's way through the exchange, driven alone: two rounds, the two ends of one link, and a
// test that carries messages and updates.
#include <doctest/doctest.h>

#include <limits>
#include <memory>

#include "core/base/protocol.h"
#include "core/node/exchange_round.h"
#include "core/node/outer_momentum.h"

using namespace gossipd;

namespace {

using Floats = std::vector<float>;
using Kind = RoundOutcome::Kind;

Instant at(double s) { return Instant{} + from_seconds(s); }

const Schema& schema() {
  static const Schema one = *Schema::build({Segment{.name = "w", .shape = {8}, .size = 8}});
  return one;
}

ExchangePolicy policy_of() {
  ExchangePolicy policy;
  policy.codec = policy.keyframe_codec = policy.consensus_codec = Codec{CodecId::fp32};
  policy.period_steps = 1;
  policy.round_steps = 1;
  policy.outer_momentum = 0;
  return policy;
}

// One node's part: its round, its end of the link, and a trainer that does as it is told.
struct End {
  ExchangePolicy policy = policy_of();
  Directory directory;
  Random random{1};
  ExchangeRound round{policy, schema()};
  NodeId peer;
  Link link;
  Floats model;
  Step step = 0;
  Phase phase = Phase::training;
  bool connected = true;
  double step_seconds = 0.01;
  std::size_t outstanding = 0;
  std::vector<SharedBytes> outbox;

  End(NodeId self, NodeId other, float value)
      : directory(self), peer(other), link(self, other, schema(), policy), model(8, value) {
    MemberRecord record;
    record.id = self;
    record.incarnation = 1;
    directory.set_self(std::move(record), true, at(0));
    round.prepare(make_round_buffers(8), Step{0});
    apply(round.begin(true));
  }

  void apply(Update update) {
    for (std::size_t i = 0; i < model.size(); ++i)
      model[i] = update.replace ? update.values[i] : model[i] + update.values[i];
    given = std::move(update);
  }

  RoundContext context(std::vector<RoundLink>& links, double now) {
    links.clear();
    links.push_back(
        {.peer = peer, .link = link, .connected = connected, .outstanding = outstanding});
    return {
        .now = at(now), .phase = phase, .links = links, .directory = directory, .random = random};
  }

  // A step that leaves the model as it is, then its snapshot.
  void give_snapshot(double now) {
    Snapshot snapshot;
    snapshot.model = std::exchange(given.values, {});
    snapshot.model = model;
    snapshot.step = phase == Phase::training ? ++step : step;
    snapshot.learning_rate = snapshot.learning_rate_peak = 0.1;
    snapshot.step_seconds = step_seconds;
    snapshot.batch = 8;
    round.on_snapshot(std::move(snapshot), link.is_open() ? 1 : 0, at(now));
  }

  // Until the round is over; what it ended with.
  RoundOutcome finish(double now) {
    std::vector<RoundLink> links;
    round.begin_if_due(context(links, now));
    RoundOutcome last;
    while (round.has_work()) {
      last = round.work(context(links, now));
      for (auto& [to, message] : last.messages) outbox.push_back(std::move(message));
    }
    return last;
  }

  void train(double now) {
    give_snapshot(now);
    RoundOutcome outcome = finish(now);
    REQUIRE(outcome.kind == Kind::handed_back);
    apply(std::move(outcome.update));
  }

  void hear(End& other, double now) {
    for (const SharedBytes& message : std::exchange(other.outbox, {}))
      REQUIRE_FALSE(link.on_turn(*message, 0.001, at(now)));
  }

  Update given;
};

struct Pair {
  End a{NodeId{1}, NodeId{2}, 1.0f}, b{NodeId{2}, NodeId{1}, 3.0f};

  Pair() { open(); }
  void open() {
    Ready of_a, of_b;
    of_a.has_model = of_b.has_model = true;
    of_a.nonce = 1, of_b.nonce = 2;
    a.link.describe(of_a), b.link.describe(of_b);
    (void)a.link.open(of_a, of_b, protocol_version);
    (void)b.link.open(of_b, of_a, protocol_version);
  }
};

}  // namespace

TEST_CASE("before the first snapshot the trainer has the buffer, and there is no work") {
  End end(NodeId{1}, NodeId{2}, 1.0f);
  CHECK_FALSE(end.round.has_work());
  CHECK_FALSE(end.round.is_resting());
  CHECK(end.given.values == Floats(8, 0.0f));
  CHECK(end.given.training);
}

TEST_CASE("without a link a snapshot comes back as an update of zeros") {
  End end(NodeId{1}, NodeId{2}, 1.0f);
  end.train(1);
  CHECK(end.given.values == Floats(8, 0.0f));
  CHECK(end.model == Floats(8, 1.0f));
  CHECK(end.round.last().step == 1);
  CHECK(end.round.last().model.empty());
}

TEST_CASE("the next snapshot is due so many steps after the last one, not after the update") {
  End end(NodeId{1}, NodeId{2}, 1.0f);
  end.policy.round_steps = 2;
  end.train(1);
  CHECK(end.step == 1);
  CHECK(end.given.snapshot_step == 3);
  end.step = 6;  // the trainer was not waited for
  end.train(2);
  CHECK(end.given.snapshot_step == 9);
}

TEST_CASE("an exchange brings two models together and keeps their mean") {
  Pair pair;
  for (int i = 0; i < 20; ++i) {
    pair.a.train(i);
    pair.b.hear(pair.a, i);
    pair.b.train(i);
    pair.a.hear(pair.b, i);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(pair.a.model[i] == doctest::Approx(2.0).epsilon(0.02));
    CHECK(pair.b.model[i] == doctest::Approx(2.0).epsilon(0.02));
    CHECK(pair.a.model[i] + pair.b.model[i] == doctest::Approx(4.0).epsilon(0.02));
  }
  CHECK(pair.a.round.linked_steps() == 20);
}

TEST_CASE("outer momentum takes its share of own steps back, as long as it is brought") {
  Pair pair;
  pair.a.policy.outer_momentum = pair.b.policy.outer_momentum = 0.5;
  const auto step = [](End& end, double now) {
    for (float& value : end.model) value += 1;
    end.train(now);
  };
  int i = 0;
  const auto exchange = [&](int rounds) {
    for (const int last = i + rounds; i < last; ++i) {
      step(pair.a, i);
      pair.b.hear(pair.a, i);
      step(pair.b, i);
      pair.a.hear(pair.b, i);
    }
  };
  exchange(20);
  const float from = pair.a.model[0];
  exchange(20);
  CHECK(pair.a.model[0] - from == doctest::Approx(20).epsilon(0.02));
  // From now on b is not heard; a link without an exchange for four periods counts no more.
  const float silent_from = pair.a.model[0];
  for (const int last = i + 6; i < last; ++i) step(pair.a, i);
  CHECK(pair.a.model[0] - silent_from < 5.5f);
  step(pair.a, i++);
  CHECK(pair.a.given.values == Floats(8, 0.0f));
}

TEST_CASE("a neighbour that claims endless steps takes momentum for a while only") {
  Pair pair;
  pair.a.policy.outer_momentum = pair.b.policy.outer_momentum = 0.5;
  pair.b.step_seconds = 1e6;
  int i = 0;
  const auto step = [&](End& end) {
    for (float& value : end.model) value += 1;
    end.train(i);
  };
  for (; i < 20; ++i) {
    step(pair.a);
    pair.b.hear(pair.a, i);
    step(pair.b);
    pair.a.hear(pair.b, i);
  }
  for (; i < 100; ++i) step(pair.a);
  CHECK(pair.a.given.values == Floats(8, 0.0f));
}

TEST_CASE("a turn for which there is no room waits for a later round") {
  Pair pair;
  pair.a.outstanding = pair.a.policy.bulk_window_bytes + 1;
  pair.a.train(1);
  CHECK(pair.a.outbox.empty());
  CHECK(pair.a.link.speaking());
  pair.a.outstanding = 0;
  pair.a.train(2);
  CHECK_FALSE(pair.a.outbox.empty());
  CHECK_FALSE(pair.a.link.speaking());
}

TEST_CASE("a snapshot that is not finite is taken back when the model before it is known") {
  End end(NodeId{1}, NodeId{2}, 1.0f);
  end.train(1);
  end.model[3] = std::numeric_limits<float>::quiet_NaN();
  end.give_snapshot(2);
  RoundOutcome outcome = end.finish(2);
  CHECK(outcome.kind == Kind::taken_back);
  CHECK(outcome.update.replace);
  CHECK(outcome.why.find(to_string(Jump::not_finite)) != std::string::npos);
  end.apply(std::move(outcome.update));
  CHECK(end.model == Floats(8, 1.0f));
}

TEST_CASE("a model that never was finite breaks the round off, until another is adopted") {
  End end(NodeId{1}, NodeId{2}, 1.0f);
  Snapshot snapshot;
  snapshot.model = end.model;
  snapshot.finite = false;
  end.round.on_snapshot(std::move(snapshot), 0, at(1));
  CHECK(end.round.on_not_finite(true).kind == Kind::broken);
  CHECK(end.round.is_resting());
  CHECK_FALSE(end.round.has_work());
  const auto [a, b] = end.round.copies();
  std::ranges::fill(a, 5.0f);
  std::ranges::fill(b, 5.0f);
  end.apply(end.round.adopt(true));
  CHECK(end.model == Floats(8, 5.0f));
  CHECK(end.round.last().finite);
}

TEST_CASE("at rest a round waits until a link has something to do") {
  End end(NodeId{1}, NodeId{2}, 1.0f);
  end.train(1);
  end.phase = Phase::paused;
  end.train(2);  // the trainer was told to step, so this one is looked at
  CHECK_FALSE(end.given.training);
  end.give_snapshot(3);
  (void)end.finish(3);
  CHECK(end.round.is_waiting());
  end.phase = Phase::training;
  CHECK(end.finish(4).kind == Kind::handed_back);
}

TEST_CASE("a node that stands still has said all once its neighbour has heard of its last steps") {
  Pair pair;
  std::vector<RoundLink> links;
  const auto move = [&](float by) {
    for (float& value : pair.a.model) value += by;
  };
  const auto has_said_all = [&](double now) {
    const RoundContext context = pair.a.context(links, now);
    return pair.a.round.has_said_all(context.links, context.directory);
  };
  for (int i = 0; i < 20; ++i) {
    move(i % 2 == 0 ? 0.02f : -0.02f);
    pair.a.train(i);
    pair.b.hear(pair.a, i);
    pair.b.train(i);
    pair.a.hear(pair.b, i);
  }
  const auto stand_still = [&] {
    pair.a.phase = Phase::finishing;
    pair.a.round.stand_still(from_seconds(0.5), at(19.5));
    CHECK_FALSE(has_said_all(19.5));
  };
  SUBCASE("they have changed its model") {
    move(0.05f);
    pair.a.give_snapshot(19.4);
    stand_still();
    pair.a.apply(pair.a.finish(19.6).update);  // takes in the answer, and opens nothing yet
    CHECK_FALSE(has_said_all(19.6));
    pair.a.train(20.1);
    CHECK_FALSE(pair.a.outbox.empty());
    CHECK_FALSE(has_said_all(20.1));  // what the neighbour answers may still move the model
    pair.b.hear(pair.a, 20.2);
    pair.b.train(20.2);
    pair.a.hear(pair.b, 20.2);
    CHECK(has_said_all(20.2));
  }
  SUBCASE("they have changed nothing") {
    stand_still();
    pair.a.train(20.1);
    CHECK(pair.a.outbox.empty());
    CHECK(has_said_all(20.1));
  }
  SUBCASE("the neighbour has not answered what was said before them") {
    move(0.05f);
    pair.a.train(19.2);
    CHECK_FALSE(pair.a.outbox.empty());
    stand_still();
    pair.a.train(20.1);
    CHECK_FALSE(has_said_all(20.1));
    pair.b.hear(pair.a, 20.2);
    pair.b.train(20.2);
    pair.a.hear(pair.b, 20.2);
    pair.a.train(20.7);
    pair.b.hear(pair.a, 20.8);
    pair.b.train(20.8);
    pair.a.hear(pair.b, 20.8);
    CHECK(has_said_all(20.8));
  }
}

TEST_CASE("a link whose session is back brings outer momentum once it is open again") {
  Pair pair;
  for (int i = 0; i < 4; ++i) {
    pair.a.train(i);
    pair.b.hear(pair.a, i);
    pair.b.train(i);
    pair.a.hear(pair.b, i);
  }
  ExchangePolicy policy = policy_of();
  policy.outer_momentum = 0.5;
  Snapshot last;
  last.step = pair.a.step;
  last.step_seconds = 0.01;
  std::vector<RoundLink> links;
  (void)pair.a.context(links, 4);
  const auto share = [&] { return carried_share(policy, links, {{pair.a.peer, last.step}}, last); };
  CHECK(share() == doctest::Approx(0.5));
  pair.a.link.close();
  REQUIRE(links.front().connected);
  CHECK(share() == 0);
}

TEST_CASE("the first turn after the replicas were forgotten brings none, as a new link's") {
  Pair pair;
  const auto exchange = [&](int from, int count) {
    for (int i = from; i < from + count; ++i) {
      pair.a.model[0] += 1;
      pair.a.train(i);
      pair.b.hear(pair.a, i);
      pair.b.train(i);
      pair.a.hear(pair.b, i);
    }
  };
  exchange(0, 4);
  for (End* end : {&pair.a, &pair.b}) {
    end->link.close();
    end->link.forget();
  }
  pair.open();
  ExchangePolicy policy = policy_of();
  policy.outer_momentum = 0.5;
  std::vector<RoundLink> links;
  const auto share = [&] {
    Snapshot last;
    last.step = pair.a.step;
    last.step_seconds = 0.01;
    (void)pair.a.context(links, 4);
    return carried_share(policy, links, {{pair.a.peer, last.step}}, last);
  };
  CHECK(pair.a.link.turns_spoken() == 0);
  exchange(4, 1);
  CHECK(share() == 0);
  exchange(5, 1);
  CHECK(share() == doctest::Approx(0.5));
}

TEST_CASE("a neighbour at rest gives the turn to a node that has made its last step, once") {
  Pair pair;
  End& giver = pair.a;
  giver.policy.heartbeat = from_seconds(1000);
  for (int i = 0; i < 3; ++i) {
    giver.train(i);
    pair.b.hear(giver, i);
    pair.b.train(i);
    giver.hear(pair.b, i);
  }
  REQUIRE(giver.link.my_turn());
  giver.train(3);  // applies its half
  giver.outbox.clear();
  std::vector<RoundLink> links;
  const auto has_said_all = [&](double now) {
    const RoundContext context = giver.context(links, now);
    return giver.round.has_said_all(context.links, context.directory);
  };
  giver.phase = Phase::finishing;
  giver.round.stand_still(Duration{}, at(4));
  giver.train(4);
  CHECK(giver.outbox.empty());
  CHECK(has_said_all(4));

  MemberRecord other;
  other.id = giver.peer;
  other.incarnation = 1;
  other.phase = Phase::finishing;
  const auto tells = [&](Step step, double now) {
    other.step = step;
    ++other.incarnation;
    (void)giver.directory.merge(other, at(now));
  };
  const auto look = [&](double now) {
    giver.give_snapshot(now);
    giver.apply(giver.finish(now).update);
    const bool opened = !giver.outbox.empty();
    CHECK(giver.link.my_turn() == !opened);
    CHECK(has_said_all(now) == !opened);  // otherwise it awaits the answer
    return opened;
  };
  const auto answer = [&](double now) {
    pair.b.hear(giver, now);
    pair.b.train(now);
    giver.hear(pair.b, now);
    CHECK(has_said_all(now));
  };
  SUBCASE("while it is finishing itself") {}
  SUBCASE("when it has finished") { giver.phase = Phase::finished; }
  tells(Step{9}, 5);
  CHECK_FALSE(has_said_all(5));
  CHECK(look(6));
  answer(7);
  CHECK_FALSE(look(8));  // whatever the peer has said of these steps
  tells(Step{10}, 9);
  CHECK(look(10));
  answer(11);
  CHECK_FALSE(look(12));
}

TEST_CASE("the buffer is asked back once when an exchange waits for it") {
  Pair pair;
  pair.a.train(1);
  std::vector<RoundLink> links;
  CHECK_FALSE(pair.b.round.recalls(pair.b.context(links, 1).links));
  pair.b.hear(pair.a, 1);
  REQUIRE(pair.b.link.owes_at_once());
  CHECK(pair.b.round.recalls(pair.b.context(links, 1).links));
  CHECK_FALSE(pair.b.round.recalls(pair.b.context(links, 1).links));
}

TEST_CASE("the distance of a node whose links are all down is not known") {
  Pair pair;
  std::vector<RoundLink> links;
  CHECK(count_open(pair.a.context(links, 0).links) == 1);
  pair.a.link.close();
  CHECK(consensus_distance(pair.a.context(links, 0).links, 1) == 1);
  CHECK(consensus_distance(pair.a.context(links, 0).links, 0) == 0);
}
