#include <doctest/doctest.h>

#include <limits>

#include "core/node/speech.h"

using namespace gossipd;

namespace {

const Schema& schema() {
  static const Schema one = *Schema::build({Segment{.name = "w", .shape = {8}, .size = 8}});
  return one;
}

struct Bench {
  ExchangePolicy policy;
  Link link{NodeId{1}, NodeId{2}, schema(), policy};
  Snapshot last;
  Speech plan(const Trigger::Decision& decision, double line_periods = 0, bool training = true) {
    return plan_speech(policy, link, decision,
                       {.training = training,
                        .last = last,
                        .line_periods = line_periods,
                        .in_flight = 2,
                        .weight = 0.5f},
                       Instant{});
  }
  // What this end, of weight 0.5, answers to an opening of a peer of such a weight.
  Speech answer(float weight) {
    Link opener{NodeId{1}, NodeId{2}, schema(), policy},
        link{NodeId{2}, NodeId{1}, schema(), policy};
    Ready first, second;
    first.has_model = second.has_model = true;
    first.nonce = 1, second.nonce = 2;
    opener.describe(first), link.describe(second);
    (void)opener.open(first, second, protocol_version);
    (void)link.open(second, first, protocol_version);
    const std::vector<float> model(8, 1.0f);
    std::vector<float> update(8);
    Speech opening =
        plan_speech(policy, opener, {true, -1}, {.training = true, .last = last}, Instant{});
    opening.weight = weight;
    opener.look_begin({}, 0, {}, Instant{});
    opener.look(0, model, update, {});
    opener.begin(opening, Instant{});
    REQUIRE(opener.speak(model, update, {}, Instant{}));
    opener.end(Instant{});
    for (const SharedBytes& message : opener.take_messages())
      REQUIRE_FALSE(link.on_turn(*message, 0, Instant{}));
    REQUIRE(link.owes_answer());
    return plan_speech(policy, link, {true, -1}, {.training = true, .last = last, .weight = 0.5f},
                       Instant{});
  }
};

}  // namespace

TEST_CASE("an opening moves no model, and tells how many exchanges its end has under way") {
  Bench bench;
  const Speech speech = bench.plan({true, 0.01});
  CHECK(speech.gain_self == 0);
  CHECK(speech.gain_peer == 0);
  CHECK(speech.in_flight == 3);
  CHECK(speech.weight == 0.5f);
}

TEST_CASE("a far line has a finer codec while training, and rest has the consensus codec") {
  Bench bench;
  bench.policy.codec = Codec{CodecId::top_k, 64};
  bench.policy.consensus_codec = Codec{CodecId::int8};
  CHECK(bench.plan({true, 0.01}).codec == bench.policy.codec);
  CHECK_FALSE(bench.plan({true, 0.01}, 20).codec == bench.policy.codec);
  CHECK(bench.plan({true, 0.01}, 20, false).codec == bench.policy.consensus_codec);
  bench.policy.codec_by_delay = false;
  CHECK(bench.plan({true, 0.01}, 20).codec == bench.policy.codec);
}

TEST_CASE("gains beyond 1 are cut by the same factor, so that the mean is kept") {
  Bench bench;
  bench.policy.mixing = 4;
  const Speech speech = bench.answer(1);
  CHECK(speech.gain_self == 1.0f);
  CHECK(speech.gain_peer == 0.5f);
}

TEST_CASE("a threshold that says everything is not shown in place of the last one") {
  Bench bench;
  bench.link.counters().threshold = 0.25;
  for (const double all : {0.0, -1.0, -std::numeric_limits<double>::infinity()}) {
    const Speech speech = bench.plan({true, all});
    CHECK(speech.threshold == all);
    CHECK(speech.threshold_shown == 0.25);
  }
  CHECK(bench.plan({true, 0.02}).threshold_shown == 0.02);
}

TEST_CASE("the pace of the last snapshot is told within bounds") {
  Bench bench;
  bench.last.step = 7;
  bench.last.step_seconds = 1e9;
  bench.last.loss = 0.5f;
  const Speech speech = bench.plan({true, 0.01});
  CHECK(speech.step == 7);
  CHECK(speech.loss == 0.5f);
  CHECK(speech.step_seconds == 1e6f);
}
