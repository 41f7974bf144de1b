// Samples and budget: what a node counts, what its trainer is told, and whose budget is in force.
#include <doctest/doctest.h>

#include "core/membership/plausibility.h"
#include "core/node/progress.h"

using namespace gossipd;

TEST_CASE("own samples are the trainer's and what a restart lost") {
  Progress progress({.own = 100});
  CHECK(progress.own() == 100);
  progress.on_trainer_ready(70, 100);  // the checkpoint is older than the last word
  CHECK(progress.own() == 100);
  progress.on_snapshot(80);
  CHECK(progress.own() == 110);
  progress.on_snapshot(75);  // an older model was restored
  CHECK(progress.own() == 110);
}

TEST_CASE("a node that gives its id up while it prepares does not count its samples again") {
  Progress before({.own = 100, .former = 20});
  const Samples former = before.trained_under_all_ids();
  CHECK(former == 120);
  Progress after({.former = former});
  after.on_trainer_ready(120, 0);  // the checkpoint's
  CHECK(after.own() == 0);
  after.on_snapshot(150);
  CHECK(after.own() == 30);
  before.on_trainer_ready(110, 100);  // the checkpoint is older than the last word
  CHECK(before.trained_under_all_ids() == 110);
}

TEST_CASE("members may know more of a node's samples than itself, never less") {
  Progress progress({});
  progress.on_trainer_ready(50, 50);
  CHECK_FALSE(progress.recover(40, 0));
  CHECK(progress.recover(90, 0));
  CHECK(progress.own() == 90);
  progress.on_snapshot(60);
  CHECK(progress.own() == 90);
  progress.on_snapshot(70);
  CHECK(progress.own() == 100);
}

TEST_CASE("what members know from a copied disk, and the trainer has counted since, counts once") {
  Progress progress({});
  progress.on_trainer_ready(0, 0);
  progress.on_snapshot(32);
  CHECK(progress.recover(64, 0));  // the checkpoint of a step that no snapshot has shown yet
  CHECK(progress.own() == 64);
  progress.on_snapshot(96);
  CHECK(progress.own() == 96);
}

TEST_CASE("samples of a former id count as the others', but the trainer counts them too") {
  Progress progress({.former = 30});
  progress.on_trainer_ready(30, 0);
  CHECK(progress.own() == 0);
  progress.on_snapshot(45);
  CHECK(progress.own() == 15);
  CHECK(progress.trained_under_all_ids() == 45);
  CHECK(progress.news_for_trainer(100) == 70);  // 100 hold the 30 that its own counter has
}

TEST_CASE("the trainer is told what is new, and never less than before") {
  Progress progress({});
  progress.on_trainer_ready(0, 5);
  CHECK(progress.news_for_trainer(100) == 105);
  CHECK_FALSE(progress.news_for_trainer(100));
  CHECK_FALSE(progress.news_for_trainer(60));
  CHECK(progress.news_for_trainer(101) == 106);
}

TEST_CASE("a budget is spent by what the trainer was told, also when the estimate comes down") {
  Progress progress({});
  progress.on_job(200);
  progress.on_trainer_ready(50, 0);
  CHECK_FALSE(progress.is_spent(149));
  CHECK(progress.is_spent(150));
  CHECK(progress.news_for_trainer(150));
  CHECK(progress.is_spent(100));
  CHECK(progress.leaves_room(100));  // members have said less than was estimated
}

TEST_CASE("a job without a budget has no end") {
  Progress progress({});
  progress.on_job(0);
  CHECK_FALSE(progress.is_spent(1'000'000));
  CHECK_FALSE(progress.ended_now(5));
}

TEST_CASE("a budget that was set lasts over the job's own") {
  Progress progress({.budget = {.revision = 1, .samples = 500}});
  progress.on_job(200);
  CHECK(progress.in_force() == 500);
}

TEST_CASE("an extension counts from the budget, or from what is beyond it already") {
  Progress progress({});
  progress.on_job(200);
  CHECK(progress.extended_by(50, 0)->samples == 250);
  CHECK(progress.extended_by(50, 300)->samples == 350);
  // After a lie a node neither makes the budget as large nor pretends to extend it.
  CHECK(progress.extended_by(50, 400)->samples == 450);
  CHECK(progress.extended_by(50, 449)->samples == 450);
  CHECK_FALSE(progress.extended_by(50, 450));
  CHECK_FALSE(progress.extended_by(50, Samples{1} << 47));
  CHECK(progress.extended_by(50, 0)->revision == 1);
  const auto by_nothing = progress.extended_by(0, 0);
  REQUIRE_FALSE(by_nothing);
  CHECK(by_nothing.error().text.starts_with("0 samples extend nothing"));
  CHECK_FALSE(progress.extended_by(budget_samples_max, 0));
}

TEST_CASE("a change that affects schedule or budget is seen once, and at each tick") {
  Progress progress({.own = 40});
  CHECK(progress.has_changed(10, 1, Phase::training));
  CHECK_FALSE(progress.has_changed(10, 1, Phase::training));
  CHECK(progress.has_changed(11, 1, Phase::training));
  CHECK(progress.has_changed(11, 2, Phase::training));
  CHECK(progress.has_changed(11, 2, Phase::paused));
  progress.set({.revision = 1, .samples = 5});
  CHECK(progress.has_changed(11, 2, Phase::paused));
  CHECK(progress.recover(50, 0));
  CHECK(progress.has_changed(11, 2, Phase::paused));
  CHECK_FALSE(progress.has_changed(11, 2, Phase::paused));
  progress.look_again();
  CHECK(progress.has_changed(11, 2, Phase::paused));
}

TEST_CASE("an early end makes the budget what has been trained on") {
  Progress progress({.own = 40});
  progress.on_job(200);
  const auto budget = progress.ended_now(60);
  REQUIRE(budget);
  progress.set(*budget);
  CHECK(progress.in_force() == 100);
  CHECK(progress.is_spent(60));
  CHECK_FALSE(progress.ended_now(60));
}

TEST_CASE("an operator is told once when a member's later budget replaces the command") {
  Progress progress({});
  progress.on_job(200);
  const Budget said{.revision = 2, .samples = 900};
  CHECK_FALSE(progress.override_command(said, "box2", NodeId{2}));
  progress.set({.revision = 1, .samples = 300});
  progress.note_command();
  CHECK(progress.overridden().empty());
  const auto words = progress.override_command(said, "box2", NodeId{2});
  REQUIRE(words);
  CHECK(words->find("samples=900 instead_of=300") != std::string::npos);
  CHECK(progress.overridden().find("box2") != std::string::npos);
  CHECK_FALSE(progress.override_command(said, "box2", NodeId{2}));
  progress.note_command();
  CHECK(progress.overridden().empty());
}
