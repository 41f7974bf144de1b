// Own steps that jump, and neighbours that pull too far: each rule against stats worked out by
// hand.
#include <doctest/doctest.h>

#include <limits>

#include "core/exchange/step_guard.h"
#include "core/exchange/transfer_guard.h"

using namespace gossipd;

namespace {

constexpr double model_norm = 10, rate = 0.1, usual_loss = 0.5;

// One step that moves a model of norm 10 by `distance`.
OwnMove moved_by(double distance, double loss_worst = usual_loss) {
  OwnMove move;
  const double before = model_norm * model_norm, moved = distance * distance;
  move.parameters = {
      .moved_squared = moved, .before_squared = before, .after_squared = before + moved};
  move.learning_rate = rate;
  move.loss = usual_loss;
  move.loss_worst = loss_worst;
  return move;
}

StepGuard used_to(double distance) {
  StepGuard guard(20);
  for (std::size_t i = 0; i < StepGuard::window; ++i)
    REQUIRE_FALSE(guard.judge(moved_by(distance)));
  return guard;
}

constexpr NodeId peer{1}, other{2}, third{3};
constexpr std::size_t floats = 100;

TransferGuard::Ask pull(double norm, double travelled = 1) {
  return {
      .block = 0, .floats = floats, .norm = norm, .travelled = travelled, .own_norm = model_norm};
}

// Three links whose transfers are of norm 1.
TransferGuard of_three_links() {
  TransferGuard guard(4, 1);
  for (std::size_t i = 0; i < TransferGuard::history; ++i)
    for (const NodeId id : {peer, other, third}) {
      REQUIRE(guard.share(id, pull(1)) == 1);
      REQUIRE_FALSE(guard.finish(id));
    }
  return guard;
}

}  // namespace

TEST_CASE("a look twenty times as far as usual has jumped, and is no part of the past") {
  StepGuard guard = used_to(0.1);
  CHECK_FALSE(guard.judge(moved_by(1.9)));
  CHECK(guard.judge(moved_by(2.5)) == Jump::parameters);
  CHECK(guard.judge(moved_by(1e6)) == Jump::parameters);
  CHECK(guard.jumps_in_a_row() == 2);
  CHECK_FALSE(guard.judge(moved_by(0.1)));
  CHECK(guard.jumps_in_a_row() == 0);
  CHECK(guard.jumps() == 2);
  CHECK(guard.judge(moved_by(3)) == Jump::parameters);
}

TEST_CASE("a move that is small beside the model is no jump, however unusual") {
  StepGuard guard = used_to(0.0001);
  CHECK_FALSE(guard.judge(moved_by(0.019 * model_norm)));
  CHECK(guard.judge(moved_by(0.021 * model_norm)) == Jump::parameters);
}

TEST_CASE("pace is by step and learning rate") {
  StepGuard guard = used_to(0.1);
  OwnMove many = moved_by(4);
  many.steps = 40;
  CHECK_FALSE(guard.judge(many));
  OwnMove fast = moved_by(4);
  fast.learning_rate = 40 * rate;
  CHECK_FALSE(guard.judge(fast));
  CHECK(guard.judge(moved_by(4)) == Jump::parameters);
}

TEST_CASE("gradients may answer what neighbours have done to the model") {
  StepGuard guard = used_to(0.1);
  guard.pushed(3);
  CHECK_FALSE(guard.judge(moved_by(5)));
  CHECK(guard.judge(moved_by(7)) == Jump::parameters);
}

TEST_CASE(
    "a step with a loss beyond all that was usual has jumped, even if the model has hardly moved") {
  StepGuard guard = used_to(0.1);
  CHECK_FALSE(guard.judge(moved_by(0.1, 7 * usual_loss)));
  CHECK(guard.judge(moved_by(0.1, 1e5)) == Jump::loss);
  // Nor does one loss among many tiny ones count, while it is below what an untrained model has.
  StepGuard of_a_fitted_model(20);
  for (std::size_t i = 0; i < 2 * StepGuard::window; ++i)
    REQUIRE_FALSE(of_a_fitted_model.judge(moved_by(0.1, i == 0 ? usual_loss : 1e-4)));
  CHECK_FALSE(of_a_fitted_model.judge(moved_by(0.1, 0.9 * usual_loss)));
}

TEST_CASE("statistics are judged apart, and without the learning rate") {
  StepGuard guard(20);
  OwnMove move = moved_by(0.1);
  move.statistics = {.moved_squared = 0.01, .before_squared = 1, .after_squared = 1.01};
  for (std::size_t i = 0; i < StepGuard::window; ++i) REQUIRE_FALSE(guard.judge(move));
  move.learning_rate /= 1000;
  move.parameters.moved_squared /= 1e6;
  CHECK_FALSE(guard.judge(move));
  move.statistics.moved_squared = move.statistics.after_squared = 1e6;
  CHECK(guard.judge(move) == Jump::statistics);
}

TEST_CASE(
    "what is not finite, and a model five times its size, have jumped from the first look on; "
    "nothing else has") {
  StepGuard guard(20);
  CHECK_FALSE(guard.judge(moved_by(3.9 * model_norm)));
  CHECK(guard.judge(moved_by(4.1 * model_norm)) == Jump::parameters);
  CHECK(guard.judge(moved_by(std::numeric_limits<double>::infinity())) == Jump::not_finite);
  CHECK(guard.judge(moved_by(std::numeric_limits<double>::quiet_NaN())) == Jump::not_finite);
}

TEST_CASE("a pace that has really changed is believed after some looks, an explosion never") {
  StepGuard guard = used_to(0.1);
  int refused = 0;
  while (refused < 100 && guard.judge(moved_by(2.8))) ++refused;
  CHECK(refused == 2);  // 20 times 1.2 times 1.2 is above 28
  StepGuard another = used_to(0.1);
  refused = 0;
  while (refused < 100 && another.judge(moved_by(10))) ++refused;
  CHECK(refused == StepGuard::give_in_after);
  StepGuard exploding = used_to(0.1);
  for (int i = 0; i < 100; ++i)
    CHECK(exploding.judge(moved_by(5 * model_norm)) == Jump::parameters);
}

TEST_CASE("a model that comes back from far away may take large steps") {
  StepGuard guard = used_to(0.1);
  OwnMove back = moved_by(8);
  back.parameters.after_squared = 4;
  CHECK_FALSE(guard.judge(back));
}

TEST_CASE("at rest a model does not move") {
  StepGuard guard(20);
  OwnMove move = moved_by(0.1);
  move.steps = 0;
  CHECK_FALSE(guard.judge(move));
  move.parameters.moved_squared = 100;
  CHECK(guard.judge(move) == Jump::parameters);
}

TEST_CASE("a transfer is cut to four times what the other links ask for or own steps have led") {
  TransferGuard guard = of_three_links();
  CHECK(guard.share(peer, pull(3.9)) == 1);
  CHECK(guard.share(peer, pull(40)) == doctest::Approx(0.1));
  CHECK(guard.share(peer, pull(40, 3)) == doctest::Approx(0.3));
  CHECK(guard.share(other, pull(1)) == 1);
}

TEST_CASE("a model that is pulled away, and so makes ever larger steps, ends the link in time") {
  TransferGuard guard = of_three_links();
  double taken = 0, travelled = 1;
  std::uint32_t exchanges = 0;
  for (bool offends = false; !offends && exchanges < 100; ++exchanges) {
    taken += 50 * guard.share(peer, pull(50, travelled));
    offends = guard.finish(peer);
    travelled *= 10;
  }
  CHECK(exchanges == TransferGuard::strikes_max);
  CHECK(taken < 150);
}

TEST_CASE("nothing is taken of a pull beyond ten times the model") {
  TransferGuard guard(4, 1);
  CHECK(guard.share(peer, pull(1e6)) == 0);
  CHECK(guard.share(peer, pull(std::numeric_limits<double>::infinity())) == 0);
  CHECK(guard.share(peer, pull(50)) == 1);  // but of one without a past everything else
}

TEST_CASE("if all links pull far, this node is the one that is far") {
  TransferGuard guard = of_three_links();
  CHECK(guard.share(peer, pull(40)) < 1);
  for (std::size_t i = 0; i < TransferGuard::history; ++i)
    for (const NodeId id : {peer, other, third}) (void)guard.share(id, pull(40));
  CHECK(guard.share(peer, pull(40)) == 1);
  CHECK(guard.share(other, pull(40)) == 1);
}

TEST_CASE(
    "without another link a node goes by what it has taken, and cannot be driven away by asking") {
  TransferGuard guard(4, 1);
  for (std::size_t i = 0; i < TransferGuard::history; ++i)
    REQUIRE(guard.share(peer, pull(0.1, 0.1)) == 1);
  CHECK(guard.share(peer, pull(40, 0.1)) == doctest::Approx(0.01));
}

TEST_CASE("a link that is cut hard again and again offends, and the next time sooner") {
  TransferGuard guard = of_three_links();
  const auto exchanges_until_offence = [&] {
    for (int i = 1; i < 100; ++i) {
      (void)guard.share(peer, pull(40));
      if (guard.finish(peer)) return i;
    }
    return 0;
  };
  CHECK(exchanges_until_offence() == TransferGuard::strikes_max);
  guard.close(peer);
  CHECK(exchanges_until_offence() == TransferGuard::strikes_max / 2);
  // One that is cut now and then does not.
  for (int i = 0; i < 100; ++i) {
    (void)guard.share(other, pull(i % 2 == 0 ? 40 : 1));
    CHECK_FALSE(guard.finish(other));
  }
}

TEST_CASE("exchanges that are not cut hard make up for an offence, and leave nothing behind") {
  TransferGuard guard = of_three_links();
  const auto exchanges_until_offence = [&] {
    for (std::uint32_t i = 1; i < 100; ++i) {
      (void)guard.share(peer, pull(40));
      if (guard.finish(peer)) return i;
    }
    return 0u;
  };
  const auto exchange_calmly = [&](std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      REQUIRE(guard.share(peer, pull(1)) == 1);
      REQUIRE_FALSE(guard.finish(peer));
    }
  };
  REQUIRE(exchanges_until_offence() == TransferGuard::strikes_max);
  exchange_calmly(TransferGuard::forgiven_after - 1);
  REQUIRE(exchanges_until_offence() == TransferGuard::strikes_max / 2);
  exchange_calmly(2 * TransferGuard::forgiven_after);
  CHECK(exchanges_until_offence() == TransferGuard::strikes_max);
  guard.close(peer);
  CHECK(guard.remembers() == 3);  // the offence
  guard.close(other);
  CHECK(guard.remembers() == 2);
}

TEST_CASE("of peers that are gone the guard remembers the worst, and no more than so many") {
  TransferGuard guard = of_three_links();
  for (std::uint32_t i = 0; i < TransferGuard::strikes_max; ++i) {
    (void)guard.share(peer, pull(40));
    CHECK(guard.finish(peer) == (i + 1 == TransferGuard::strikes_max));
  }
  guard.close(peer);
  for (std::uint64_t i = 0; i < 2 * TransferGuard::closed_max; ++i) {
    const NodeId passing{100 + i};
    (void)guard.share(passing, pull(1e6));
    REQUIRE_FALSE(guard.finish(passing));
    guard.close(passing);
  }
  CHECK(guard.remembers() == TransferGuard::closed_max + 2);  // two links are open
  for (std::uint32_t i = 0; i < TransferGuard::strikes_max / 2; ++i) {
    (void)guard.share(peer, pull(40));
    CHECK(guard.finish(peer) == (i + 1 == TransferGuard::strikes_max / 2));
  }
}

TEST_CASE("if no node moves by its own steps, models converge from any distance") {
  TransferGuard guard(4, 1);
  for (std::size_t i = 0; i < TransferGuard::history; ++i)
    for (const NodeId id : {peer, other}) REQUIRE(guard.share(id, pull(0.01, 0)) == 1);
  CHECK(guard.share(peer, pull(20, 0)) == 1);
}
