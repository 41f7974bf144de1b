// When a node speaks: each rule against stats worked out by hand.
#include <doctest/doctest.h>

#include <cmath>

#include "core/exchange/settings.h"
#include "core/exchange/trigger.h"

using namespace gossipd;

namespace {

Instant at(double s) { return Instant{} + from_seconds(s); }

ExchangePolicy with(TriggerRule trigger) {
  ExchangePolicy e;
  e.trigger = trigger;
  return e;
}

Trigger::LinkState changed_by(double block) {
  return {.block_change = block, .steps_since_spoken = 1000};
}

Trigger::Round look(double s, double learning_rate) {
  return {.at = at(s), .learning_rate = learning_rate, .learning_rate_peak = 0.1};
}

}  // namespace

TEST_CASE("the change rule follows the learning rate down to the floor") {
  const ExchangePolicy policy = with(TriggerRule::change);  // 0.01, power 1, floor 0.05
  Trigger trigger(policy);
  trigger.on_round(look(0, 0.05));
  CHECK(trigger.threshold() == doctest::Approx(0.005));
  CHECK(trigger.decide(changed_by(0.006)).speak);
  CHECK_FALSE(trigger.decide(changed_by(0.004)).speak);
  trigger.on_round(look(1, 0.0001));
  CHECK(trigger.threshold() == doctest::Approx(0.0005));
  Trigger::LinkState quiet = changed_by(0);
  quiet.due = true;
  CHECK(trigger.decide(quiet).speak);
  CHECK(trigger.decide(quiet).threshold == doctest::Approx(0.00005));
  CHECK(trigger.answer_threshold() == trigger.threshold());
  // Nothing before the spacing is over, neither a change nor the heartbeat; then both.
  Trigger::LinkState soon = changed_by(1);
  soon.due = true;
  soon.steps_since_spoken = policy.period_steps - 1;
  CHECK_FALSE(trigger.decide(soon).speak);
  ++soon.steps_since_spoken;
  CHECK(trigger.decide(soon).speak);
}

TEST_CASE(
    "a model that changes fast does not wait for the period, and is looked at after every step") {
  ExchangePolicy policy = with(TriggerRule::change);
  policy.period_steps = 8;
  policy.urgent_change = 0.1;
  Trigger trigger(policy);
  trigger.on_round(look(0, 0.1));
  Trigger::LinkState fast = changed_by(1);
  fast.steps_since_spoken = 1;
  fast.change = 0.09;
  CHECK_FALSE(trigger.decide(fast).speak);
  CHECK_FALSE(trigger.is_urgent());
  fast.change = 0.1;
  CHECK(trigger.decide(fast).speak);
  CHECK(trigger.decide(fast).threshold == trigger.threshold());
  fast.change = 0.01;  // another link
  CHECK_FALSE(trigger.decide(fast).speak);
  CHECK(trigger.is_urgent());
  // A round that only answers sees few links; the next look sees all.
  Trigger::Round round = look(1, 0.1);
  round.looks = false;
  trigger.on_round(round);
  CHECK(trigger.is_urgent());
  trigger.on_round(look(2, 0.1));
  CHECK_FALSE(trigger.is_urgent());
  fast.change = 1;
  policy.entry_threshold = 30;
  CHECK_FALSE(trigger.decide(fast).speak);
  policy.entry_threshold = policy.urgent_change = 0;
  CHECK_FALSE(trigger.decide(fast).speak);
  for (const TriggerRule rule : {TriggerRule::period, TriggerRule::budget}) {
    ExchangePolicy other = with(rule);
    other.urgent_change = 0.1;
    Trigger spaced(other);
    spaced.on_round(look(0, 0.1));
    (void)spaced.decide(fast);
    CHECK_FALSE(spaced.is_urgent());
  }
}

TEST_CASE("the cut for a single parameter is in usual steps and follows the learning rate") {
  ExchangePolicy policy = with(TriggerRule::change);
  policy.entry_threshold = 30;
  Trigger trigger(policy);
  CHECK(trigger.entry_cut() == 0);
  Trigger::Round round = look(0, 0.05);  // half of the peak
  trigger.on_round(round);
  CHECK(trigger.entry_cut() == 0);  // nothing is known of usual steps
  round.usual_step = 0.001;
  trigger.on_round(round);
  CHECK(trigger.entry_cut() == doctest::Approx(0.015));
  round.learning_rate = 0;
  trigger.on_round(round);
  CHECK(trigger.entry_cut() == doctest::Approx(0.0015));  // the floor
  policy.trigger = TriggerRule::period;
  Trigger periodic(policy);
  periodic.on_round(round);
  CHECK(periodic.entry_cut() == 0);
}

TEST_CASE("a period counts own steps since the last speech, whatever was heard") {
  ExchangePolicy policy = with(TriggerRule::period);
  policy.period_steps = 10;
  Trigger trigger(policy);
  trigger.on_round(look(0, 0.1));
  Trigger::LinkState link = changed_by(1);
  link.due = true;
  link.steps_since_spoken = 9;
  CHECK_FALSE(trigger.decide(link).speak);
  link.steps_since_spoken = 10;
  CHECK(trigger.decide(link).speak);
  CHECK(trigger.decide(link).threshold == 0);
  link.steps_since_spoken = 0;
  link.owes_keyframes = true;
  CHECK(trigger.decide(link).speak);
  CHECK(std::isinf(trigger.decide(link).threshold));
}

TEST_CASE("outer momentum falls with the root of a far line's round trip") {
  ExchangePolicy policy;
  policy.outer_momentum = 0.5;
  for (const double near : {0.0, 0.3, 1.0}) CHECK(outer_momentum_for(policy, near) == 0.5);
  CHECK(outer_momentum_for(policy, 4) == doctest::Approx(1.0 / 3));
  CHECK(outer_momentum_for(policy, 1e6) == doctest::Approx(0.001).epsilon(0.01));
  policy.outer_momentum = 0.75;
  CHECK(outer_momentum_for(policy, 9) == doctest::Approx(0.5));
  policy.outer_momentum_by_delay = false;
  CHECK(outer_momentum_for(policy, 4) == 0.75);
  policy = {.outer_momentum = 0};
  CHECK(outer_momentum_for(policy, 4) == 0);
}

TEST_CASE("replicas of a large model are asked for in bf16, unless one format is set for all") {
  ExchangePolicy policy;
  CHECK_FALSE(asks_for_bf16(policy, 31'999'999));
  CHECK(asks_for_bf16(policy, 32'000'000));
  policy.replicas = ReplicaFormat::fp32;
  CHECK_FALSE(asks_for_bf16(policy, 1'000'000'000));
  policy.replicas = ReplicaFormat::bf16;
  CHECK(asks_for_bf16(policy, 1));
}

TEST_CASE("a line is far from eight steps a round trip on, or from the period, if that is longer") {
  ExchangePolicy policy;
  policy.period_steps = 4;
  CHECK(far_line_steps(policy) == 8);
  policy.period_steps = 20;
  CHECK(far_line_steps(policy) == 20);
}

TEST_CASE("a token bucket holds a burst, and may be overdrawn by one turn") {
  TokenBucket bucket(100, 4);
  CHECK(bucket.share() == doctest::Approx(0.5));
  bucket.fill(1);
  CHECK(bucket.share() == doctest::Approx(0.75));
  bucket.fill(100);
  CHECK(bucket.share() == 1);
  bucket.take(500);
  CHECK(bucket.empty());
  bucket.fill(0.9);
  CHECK(bucket.empty());
  bucket.fill(0.2);
  CHECK_FALSE(bucket.empty());
}

TEST_CASE("a budget of bytes is used up within a few per cent, and spent on what changed most") {
  ExchangePolicy policy = with(TriggerRule::budget);
  policy.budget_bytes_per_s = 10'000;
  Trigger trigger(policy);
  // Two blocks of 1000 bytes, the one drifts four times as fast as the other; a round every 10 ms.
  double change[2] = {0, 0};
  double sent = 0;
  std::uint64_t said[2] = {0, 0};
  constexpr int rounds = 20'000, settled = 5'000;
  for (int round = 0; round < rounds; ++round) {
    trigger.on_round(look(round * 0.01, 0.1));
    change[0] += 0.0004;
    change[1] += 0.0001;
    Trigger::LinkState link = changed_by(std::max(change[0], change[1]));
    const Trigger::Decision decision = trigger.decide(link);
    if (!decision.speak) continue;
    std::uint64_t bytes = 0;
    for (const int block : {0, 1}) {
      if (change[block] <= decision.threshold) continue;
      change[block] = 0;
      bytes += 1000;
      said[block] += round >= settled;
    }
    trigger.on_spoken(bytes);
    if (round >= settled) sent += static_cast<double>(bytes);
  }
  CHECK(sent / (0.01 * (rounds - settled)) == doctest::Approx(10'000).epsilon(0.05));
  CHECK(static_cast<double>(said[0]) / static_cast<double>(said[1]) ==
        doctest::Approx(4).epsilon(0.1));
}

TEST_CASE("every exchange setting reads back what it was given") {
  ExchangePolicy policy;
  for (const Setting& setting : exchange_settings(policy)) {
    CAPTURE(setting.key);
    const std::string before = setting.get();
    CHECK_FALSE(setting.set(before));
    CHECK(setting.get() == before);
    CHECK(setting.set("no such value").has_value());
    CHECK(setting.get() == before);
  }
  const auto set = [&](const std::string& key, const std::string& value) {
    for (const Setting& setting : exchange_settings(policy))
      if (setting.key == key) REQUIRE_FALSE(setting.set(value));
  };
  set("exchange.trigger", "budget");
  set("exchange.loss_trust", "lstm");
  set("exchange.curvature_mode", "adaptive");
  CHECK(policy.trigger == TriggerRule::budget);
  CHECK(policy.correction.loss_trust == LossTrust::lstm);
  CHECK(policy.correction.curvature_mode == CurvatureMode::adaptive);
}
