// Two buffers, three names: what each holds on the way of a snapshot, and that no third is made.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/node/model_buffers.h"

using namespace gossipd;

namespace {

using Floats = std::vector<float>;

Floats copy(std::span<const float> values) { return {values.begin(), values.end()}; }

ModelBuffers prepared(std::size_t floats) {
  ModelBuffers buffers;
  buffers.prepare(make_round_buffers(floats), Step{5});
  return buffers;
}

}  // namespace

TEST_CASE("the first update is the zeros that came, and nothing is known to be handed out") {
  RoundBuffers made = make_round_buffers(3);
  const float* storage = made.update.data();
  ModelBuffers buffers;
  buffers.prepare(std::move(made), Step{5});
  const Floats update = buffers.give_zeros();
  CHECK(update == Floats(3, 0.0f));
  CHECK(update.data() == storage);
  CHECK_FALSE(buffers.handed_out_known());
  CHECK(buffers.handed_out_step() == 5);
}

TEST_CASE("a snapshot and its update are what is handed out next, in the same two allocations") {
  ModelBuffers buffers = prepared(2);
  Floats with_trainer = buffers.give_zeros();
  const float *trainers = with_trainer.data(), *ours = buffers.handed_out().data();
  with_trainer = {1, 2};
  with_trainer.shrink_to_fit();
  trainers = with_trainer.data();
  buffers.take_snapshot(std::move(with_trainer));
  CHECK(copy(buffers.snapshot()) == Floats{1, 2});
  buffers.begin_update(Step{7});
  CHECK(buffers.handed_out_known());
  CHECK(buffers.handed_out_step() == 7);
  CHECK(buffers.update().data() == ours);
  buffers.update()[1] = 0.5f;
  CHECK(buffers.apply(0, 1) == 0.0);
  CHECK(buffers.apply(1, 1) == doctest::Approx(0.25));
  const Floats update = buffers.give_update();
  CHECK(update == Floats{0, 0.5f});
  CHECK(update.data() == ours);
  CHECK(copy(buffers.handed_out()) == Floats{1, 2.5f});
  CHECK(buffers.handed_out().data() == trainers);
  CHECK(buffers.snapshot().empty());
}

TEST_CASE("a round that goes on without the own steps hands out the whole former model") {
  ModelBuffers buffers = prepared(2);
  (void)buffers.give_zeros();
  buffers.take_snapshot(Floats{1, 2});
  buffers.begin_update(Step{7});
  (void)buffers.give_update();
  buffers.take_snapshot(Floats{1e9f, -1e9f});
  buffers.undo_steps();
  CHECK(copy(buffers.snapshot()) == Floats{1, 2});
  std::ranges::fill(buffers.handed_out(), 0.0f);
  buffers.begin_update(Step{9});
  buffers.update()[1] = 0.5f;
  (void)buffers.apply(0, 2);
  CHECK(buffers.give_model() == Floats{1, 2.5f});
  CHECK(copy(buffers.handed_out()) == Floats{1, 2.5f});
}

TEST_CASE("a snapshot that is not believed is replaced by what was handed out") {
  ModelBuffers buffers = prepared(2);
  (void)buffers.give_zeros();
  buffers.take_snapshot({1, 2});
  buffers.begin_update(Step{7});
  Floats with_trainer = buffers.give_update();
  buffers.take_snapshot({100, 200});
  CHECK(buffers.give_back_handed_out(Step{9}) == Floats{1, 2});
  CHECK(copy(buffers.handed_out()) == Floats{1, 2});
  CHECK(buffers.handed_out_step() == 9);
}

TEST_CASE("a round that breaks off leaves two buffers, wherever it was") {
  for (const bool has_update : {false, true}) {
    CAPTURE(has_update);
    ModelBuffers buffers = prepared(2);
    (void)buffers.give_zeros();
    buffers.take_snapshot({1, 2});
    if (has_update) buffers.begin_update(Step{7});
    buffers.abandon();
    const auto [a, b] = buffers.copies();
    REQUIRE(a.size() == 2);
    REQUIRE(b.size() == 2);
    for (const auto& values : {a, b}) values[0] = 3, values[1] = 4;
    CHECK(buffers.adopt(Step{8}) == Floats{3, 4});
    CHECK(copy(buffers.handed_out()) == Floats{3, 4});
    CHECK(buffers.handed_out_known());
  }
}

TEST_CASE("after a round that broke off an update of zeros is one") {
  ModelBuffers buffers = prepared(2);
  (void)buffers.give_zeros();
  buffers.take_snapshot({1, 2});
  buffers.abandon();
  CHECK(buffers.give_zeros() == Floats(2, 0.0f));
}
