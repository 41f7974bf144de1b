#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/node/final_model.h"

using namespace gossipd;

namespace {

Directory::Entry member(MemberState state, Phase phase, double consensus_distance = 0) {
  Directory::Entry entry;
  entry.record.name = "box3";
  entry.record.state = state;
  entry.record.phase = phase;
  entry.record.consensus_distance = consensus_distance;
  return entry;
}

double share_of_a_round(const std::vector<float>& model, const std::vector<float>& update) {
  RestMove round;
  round.look(model);
  round.move(update);
  return round.share();
}

}  // namespace

TEST_CASE(
    "a final model is stale once the model has moved further than the bound, in however many "
    "moves") {
  FinalModel model;
  const std::vector<float> x(100, 1.0f), nothing(100, 0.0f), a_hundredth(100, 0.01f);
  for (int round = 0; round < 4; ++round) {
    CHECK_FALSE(model.is_stale(0.035));
    model.moved(share_of_a_round(x, a_hundredth));
  }
  CHECK(model.moved_since_written() == doctest::Approx(0.04));
  CHECK(model.is_stale(0.035));
  model.written();
  CHECK_FALSE(model.is_stale(0.0));
  model.moved(share_of_a_round(x, nothing));
  CHECK_FALSE(model.is_stale(0.0));
}

TEST_CASE("the pieces of a round are one move of the whole model") {
  RestMove round;
  const std::vector<float> x(50, 1.0f), nothing(50, 0.0f), moved(50, 0.02f);
  for (int piece = 0; piece < 2; ++piece) round.look(x);
  round.move(moved);
  round.move(nothing);
  CHECK(round.share() == doctest::Approx(0.02 / std::sqrt(2.0)));
}

TEST_CASE("a model of zeros that moves is another one") {
  FinalModel model;
  model.moved(share_of_a_round(std::vector<float>(4, 0.0f), std::vector<float>(4, 1.0f)));
  CHECK(model.is_stale(0.5));
}

TEST_CASE("a model that is to be written may have moved before") {
  FinalModel model;
  model.moved(0.5);
  model.want();
  CHECK(model.is_due());
  CHECK_FALSE(model.is_stale(0.0));
  model.moved(0.1);
  CHECK(model.is_stale(0.05));
}

TEST_CASE("every living member is waited for until it has made its last step") {
  for (const Phase phase :
       {Phase::joining, Phase::waiting_for_data, Phase::preparing, Phase::syncing, Phase::training,
        Phase::paused, Phase::leaving, Phase::broken, Phase::waiting_for_trainer})
    CHECK(why_not_at_end(member(MemberState::alive, phase)) ==
          std::string("box3 is ") + to_string(phase));
  for (const Phase phase : {Phase::finishing, Phase::finished}) {
    CHECK(why_not_at_end(member(MemberState::alive, phase)).empty());
    Directory::Entry suspect = member(MemberState::alive, phase);
    suspect.suspect = true;
    CHECK(why_not_at_end(suspect).find("suspected") != std::string::npos);
  }
}

TEST_CASE("dead, departed and forgotten members are not waited for") {
  for (const MemberState state : {MemberState::failed, MemberState::left, MemberState::forgotten})
    CHECK(why_not_at_end(member(state, Phase::training)).empty());
}
