// What a node without a model does: takes it from a link, rests after a break, asks its disk.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "core/base/protocol.h"
#include "core/node/model_source.h"

using namespace gossipd;

namespace {

Instant at(double s) { return Instant{} + from_seconds(s); }

const Schema& schema() {
  static const Schema one =
      *Schema::build({Segment{.name = "a", .shape = {4}, .offset = 0, .size = 4},
                      Segment{.name = "b", .shape = {2}, .offset = 4, .size = 2}});
  return one;
}

// A neighbour that has told its whole model, all of it `value`.
struct Told {
  ExchangePolicy policy;
  Link theirs{NodeId{2}, NodeId{1}, schema(), policy}, ours{NodeId{1}, NodeId{2}, schema(), policy};

  explicit Told(float value) {
    policy.keyframe_codec = Codec{CodecId::fp32};
    Ready has, has_not;
    has.has_model = true;
    has.nonce = 1, has_not.nonce = 2;
    theirs.describe(has), ours.describe(has_not);
    (void)theirs.open(has, has_not, protocol_version);
    (void)ours.open(has_not, has, protocol_version);
    const std::vector<float> model(schema().floats(), value);
    std::vector<float> update(schema().floats(), 0.0f);
    theirs.look_begin({}, 0.1, {}, at(1000));
    for (std::size_t i = 0; i < schema().blocks().size(); ++i) theirs.look(i, model, update, {});
    theirs.begin({.codec = Codec{CodecId::fp32}, .snapshot_at = at(1000)}, at(1000));
    while (!theirs.spoken_all()) REQUIRE(theirs.speak(model, update, {}, at(1000)));
    theirs.end(at(1000));
    for (const SharedBytes& message : theirs.take_messages())
      REQUIRE_FALSE(ours.on_turn(*message, 0.001, at(1000)));
  }
};

struct Buffers {
  std::vector<float> a = std::vector<float>(6, 0.0f), b = a;
  [[nodiscard]] ModelAssembly::Copies copies() { return {a, b}; }
};

StepGuard that_saw_a_jump() {
  StepGuard guard(6);
  OwnMove move;
  move.parameters.moved_squared = std::numeric_limits<double>::infinity();
  REQUIRE(guard.judge(move));
  return guard;
}

}  // namespace

TEST_CASE("before the trainer stands no model is missing") {
  ModelSource source(schema());
  CHECK_FALSE(source.trainer_stands());
  CHECK_FALSE(source.is_missing());
  source.on_trainer_ready(false);
  CHECK(source.is_missing());
  source.adopted();
  CHECK(source.has_model());
}

TEST_CASE("a model that one neighbour has told from end to end fills both copies") {
  Told told(0.5f);
  ModelSource source(schema());
  source.on_trainer_ready(false);
  Buffers buffers;
  CHECK_FALSE(source.assemble({}, at(1001), buffers.copies()));
  const auto from = source.assemble({{NodeId{2}, &told.ours}}, at(1001), buffers.copies());
  REQUIRE(from);
  CHECK(from->from.find("peer=" + to_hex(NodeId{2})) == 0);
  CHECK(from->from.find("blocks=2") != std::string::npos);
  CHECK_FALSE(from->initial);
  CHECK(buffers.a == std::vector<float>(6, 0.5f));
  CHECK(buffers.b == buffers.a);
}

TEST_CASE(
    "a large initial model is taken over piece by piece, and what is heard meanwhile counts") {
  constexpr std::size_t floats = 5 * ModelSource::piece_floats / 2;
  const Schema large =
      *Schema::build({Segment{.name = "a", .shape = {floats}, .offset = 0, .size = floats}});
  const SharedModel initial = std::make_shared<const std::vector<float>>(floats, 0.25f);
  const ExchangePolicy policy;
  Link theirs(NodeId{2}, NodeId{1}, large, policy), ours(NodeId{1}, NodeId{2}, large, policy);
  Ready has, has_not;
  has.has_model = true;
  has.nonce = 1, has_not.nonce = 2;
  has.initial = has_not.initial = 7;
  theirs.describe(has), ours.describe(has_not);
  (void)theirs.open(has, has_not, protocol_version, initial);
  (void)ours.open(has_not, has, protocol_version, initial);
  ModelSource source(large);
  source.on_trainer_ready(false);
  std::vector<float> a(floats, 0.0f), b = a;
  const ModelAssembly::Links links{{NodeId{2}, &ours}};
  const auto copied = [&] { return std::ranges::count(b, 0.25f); };
  std::int64_t before = 0;
  for (int call = 0; call < 2; ++call) {
    REQUIRE_FALSE(source.assemble(links, at(1001), {a, b}));
    CHECK(source.is_assembling());
    CHECK(copied() > before);
    CHECK(copied() - before <= static_cast<std::int64_t>(ModelSource::piece_floats));
    before = copied();
  }
  SUBCASE("nothing is heard") {
    const auto model = source.assemble(links, at(1001), {a, b});
    REQUIRE(model);
    CHECK(model->initial);
    CHECK(a == *initial);
    CHECK(b == *initial);
    CHECK_FALSE(source.is_assembling());
  }
  SUBCASE("the first block changes") {
    std::vector<float> model = *initial, update(floats, 0.0f);
    std::ranges::fill(large.blocks()[0].of(std::span(model)), 0.5f);
    theirs.look_begin({}, 0.1, {}, at(1000));
    for (std::size_t i = 0; i < large.blocks().size(); ++i) theirs.look(i, model, update, {});
    theirs.begin({.codec = Codec{CodecId::fp32}, .snapshot_at = at(1000)}, at(1000));
    while (!theirs.spoken_all()) REQUIRE(theirs.speak(model, update, {}, at(1000)));
    theirs.end(at(1000));
    for (const SharedBytes& message : theirs.take_messages())
      REQUIRE_FALSE(ours.on_turn(*message, 0.001, at(1000)));
    const auto taken = source.assemble(links, at(1001), {a, b});
    REQUIRE(taken);
    CHECK_FALSE(taken->initial);
    CHECK(a[0] == 0.5f);
    CHECK(a == b);
    CHECK(a.back() == 0.25f);
  }
  SUBCASE("the link ends: what was copied does not count") {
    CHECK_FALSE(source.assemble({}, at(1001), {a, b}));
    CHECK_FALSE(source.is_assembling());
  }
}

TEST_CASE("blocks received on a link survive its end until a model is adopted") {
  Told told(0.5f);
  ModelSource source(schema());
  source.on_trainer_ready(false);
  source.keep(NodeId{2}, told.ours);
  Buffers buffers;
  CHECK(source.assemble({}, at(1001), buffers.copies()));
  source.adopted();
  CHECK_FALSE(source.assemble({}, at(1001), buffers.copies()));
}

TEST_CASE("one more neighbour begins in the middle of what the other has yet to tell") {
  ExchangePolicy policy;
  const Link empty(NodeId{1}, NodeId{2}, schema(), policy);
  const ModelSource source(schema());
  Ready ready;
  source.order_blocks(ready, {}, {}, at(1000));
  CHECK(ready.first_block == 0);
  const ModelSource::Teller teller{.link = empty, .first_block = 0};
  source.order_blocks(ready, {}, {&teller, 1}, at(1000));
  CHECK(ready.first_block == 1);
  CHECK(ready.held_flips.empty());
}

TEST_CASE("a model that breaks again and again is fetched ever later") {
  Told told(0.5f);
  ModelSource source(schema());
  source.on_trainer_ready(true);
  const StepGuard guard = that_saw_a_jump();
  const ModelAssembly::Links links{{NodeId{2}, &told.ours}};
  Buffers buffers;
  source.on_broken(guard, at(1100));
  CHECK_FALSE(source.assemble(links, at(1109), buffers.copies()));
  CHECK(source.assemble(links, at(1110), buffers.copies()));
  source.on_broken(guard, at(1200));
  CHECK_FALSE(source.assemble(links, at(1219), buffers.copies()));
  CHECK(source.assemble(links, at(1220), buffers.copies()));
}

TEST_CASE("a model that broke without a jump is fetched at once") {
  Told told(0.5f);
  ModelSource source(schema());
  source.on_trainer_ready(true);
  source.on_broken(StepGuard(6), at(1100));
  Buffers buffers;
  CHECK(source.assemble({{NodeId{2}, &told.ours}}, at(1100), buffers.copies()));
}

TEST_CASE("the checkpoint is asked for once, when there is nobody to ask and the rest is over") {
  ModelSource source(schema());
  source.on_trainer_ready(true);
  source.on_broken(that_saw_a_jump(), at(1000));
  CHECK_FALSE(source.wants_checkpoint(0, at(1009)));
  CHECK_FALSE(source.wants_checkpoint(1, at(1010)));
  CHECK(source.wants_checkpoint(0, at(1010)));
  CHECK_FALSE(source.wants_checkpoint(0, at(1011)));
  source.adopted();
  CHECK(source.wants_checkpoint(0, at(1012)));
}

TEST_CASE("a checkpoint of another size, or with a value that is not finite, is of no use") {
  const ModelSource source(schema());
  Buffers buffers;
  std::vector<float> model(6, 2.0f);
  CHECK_FALSE(source.restore(std::span(model).first(5), buffers.copies()));
  model[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(source.restore(model, buffers.copies()));
  CHECK(buffers.a == std::vector<float>(6, 0.0f));
  model[5] = 2.0f;
  CHECK(source.restore(model, buffers.copies()));
  CHECK(buffers.a == model);
  CHECK(buffers.b == model);
}
