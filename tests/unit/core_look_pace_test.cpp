// When a round is a look, what a model weighs, and whose model is taken from.
#include <doctest/doctest.h>

#include "core/node/look_pace.h"
#include "core/node/model_weight.h"
#include "core/node/peer_trust.h"

using namespace gossipd;

namespace {

Instant at(double s) { return Instant{} + from_seconds(s); }

Directory members_of(std::size_t count, Phase phase = Phase::training) {
  Directory directory(NodeId{1});
  for (std::size_t i = 1; i <= count; ++i) {
    MemberRecord record;
    record.id = NodeId{i};
    record.incarnation = 1;
    record.phase = phase;
    if (i == 1) {
      directory.set_self(std::move(record), true, at(0));
      continue;
    }
    (void)directory.merge(record, at(0));
    directory.heard_from(NodeId{i}, at(0));
  }
  return directory;
}

}  // namespace

TEST_CASE("while training so many own steps lie between two looks") {
  LookPace pace;
  CHECK(pace.begin_training(Step{10}, Step{4}, at(1)));
  CHECK(pace.steps_to_look(Step{11}) == 3);
  CHECK_FALSE(pace.begin_training(Step{13}, Step{4}, at(2)));
  CHECK(pace.answers_only());
  CHECK(pace.looked_at() == at(1));
  CHECK(pace.begin_training(Step{14}, Step{4}, at(3)));
  CHECK(pace.looked_at() == at(3));
}

TEST_CASE("a node that makes no steps looks again after a pause") {
  LookPace pace;
  pace.stand_still(from_seconds(4), at(1));
  CHECK_FALSE(pace.has_looked());
  CHECK_FALSE(pace.begin_rest(from_seconds(2), at(4)));
  CHECK(pace.begin_rest(from_seconds(2), at(5)));
  CHECK(pace.rest_look() == at(7));
  CHECK(pace.has_looked());
  pace.stepped();
  CHECK_FALSE(pace.has_looked());
  CHECK_FALSE(pace.begin_rest(from_seconds(2), at(6)));
  CHECK_FALSE(pace.has_looked());
  CHECK(pace.answers_only());
  CHECK(pace.begin_rest(from_seconds(2), at(7)));
}

TEST_CASE("a newcomer's weight rises to 1, times its share of the minibatch") {
  ExchangePolicy policy;
  policy.joiner_weight = 0.2;
  policy.joiner_steps = 100;
  ModelWeight weight;
  CHECK(weight.training(policy, Step{0}, 1) == 1);
  weight.join(Step{50}, 0);
  CHECK(weight.training(policy, Step{50}, 1) == doctest::Approx(0.2));
  CHECK(weight.training(policy, Step{100}, 1) == doctest::Approx(0.6));
  CHECK(weight.training(policy, Step{100}, 0.5) == doctest::Approx(0.3));
  CHECK(weight.training(policy, Step{500}, 1) == 1);
  CHECK(weight.training(policy, Step{0}, 1) == doctest::Approx(0.2));  // an older checkpoint
  weight.join(Step{50}, 0, true);
  CHECK(weight.training(policy, Step{50}, 1) == 1);
}

TEST_CASE("without an own step before the job's end a model weighs little until all are one") {
  ExchangePolicy policy;
  policy.joiner_weight = 0.2;
  ModelWeight weight;
  weight.join(Step{0}, 0);
  weight.finish(policy, Step{1}, 0);  // begun with the others
  CHECK(weight.at_end(policy) == 1);
  weight.finish(policy, Step{0}, 0);
  CHECK(weight.at_end(policy) == doctest::Approx(0.2));
  weight.agree();
  CHECK(weight.at_end(policy) == 1);
}

TEST_CASE("with few own steps, and little of others' models, a model from before weighs little") {
  ExchangePolicy policy;
  policy.joiner_weight = 0.2;
  policy.joiner_steps = 100;
  ModelWeight weight;
  weight.join(Step{50}, 7);
  weight.finish(policy, Step{55}, 7.5);
  CHECK(weight.at_end(policy) == doctest::Approx(0.2));
  weight.finish(policy, Step{55}, 7.95);
  CHECK(weight.at_end(policy) == 1);
  weight.finish(policy, Step{150}, 7);  // alone, as it may be
  CHECK(weight.at_end(policy) == 1);
}

TEST_CASE("where no steps are made a newcomer's weight rises with what it takes of others") {
  ExchangePolicy policy;
  policy.joiner_weight = 0.2;
  ModelWeight weight;
  weight.join(Step{50}, 7);
  CHECK(weight.interrupted(policy, Step{50}, 7.5, 1) == doctest::Approx(0.2));
  CHECK(weight.interrupted(policy, Step{50}, 7.95, 1) == 1);
  CHECK(weight.interrupted(policy, Step{50}, 7.95, 0.25) == 0.25);
  weight.go_on(7.5);
  CHECK(weight.training(policy, Step{50}, 1) == doctest::Approx(0.2));
  weight.go_on(7.95);
  CHECK(weight.training(policy, Step{50}, 1) == 1);
}

TEST_CASE("a peer is distrusted when its loss is far beyond the median of three or more") {
  const auto losses = [](NodeId id) { return raw(id) == 3 ? 4.0 : 1.0; };
  CHECK_FALSE(is_trusted(NodeId{3}, 3, false, members_of(3), losses));
  CHECK(is_trusted(NodeId{2}, 3, false, members_of(3), losses));
  CHECK(is_trusted(NodeId{3}, 5, false, members_of(3), losses));
  CHECK(is_trusted(NodeId{3}, 0, false, members_of(3), losses));
  CHECK(is_trusted(NodeId{2}, 3, false, members_of(2),
                   [](NodeId id) { return raw(id) == 2 ? 9.0 : 1.0; }));
}

TEST_CASE("at rest the last losses count, and a node that is itself far takes from everybody") {
  const auto third_is_far = [](NodeId id) { return raw(id) == 3 ? 4.0 : 1.0; };
  const auto first_is_far = [](NodeId id) { return raw(id) == 1 ? 4.0 : 1.0; };
  const auto two_are_far = [](NodeId id) { return raw(id) % 2 == 1 ? 4.0 : 1.0; };
  CHECK_FALSE(is_trusted(NodeId{3}, 3, true, members_of(3, Phase::finishing), third_is_far));
  CHECK(is_trusted(NodeId{2}, 3, true, members_of(3, Phase::finishing), third_is_far));
  CHECK(is_trusted(NodeId{3}, 3, true, members_of(3, Phase::finishing), first_is_far));
  CHECK(is_trusted(NodeId{3}, 3, true, members_of(4, Phase::finishing), two_are_far));
}

TEST_CASE("a loss that is not known says nothing, and a node that trains asks none at rest") {
  CHECK(is_trusted(NodeId{3}, 3, false, members_of(3), [](NodeId) { return 0.0; }));
  const auto losses = [](NodeId id) { return raw(id) == 3 ? 4.0 : 1.0; };
  CHECK(is_trusted(NodeId{3}, 3, false, members_of(3, Phase::paused), losses));
}
