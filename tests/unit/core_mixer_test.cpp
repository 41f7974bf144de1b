// The pair of replicas, and this end's half of an exchange on its model: each against figures
// worked out by hand.
#include "core/exchange/mixer.h"

#include <cmath>

#include "tests/unit/core_turn_support.h"

using namespace gossipd;

namespace {

using Which = ReplicaPair::Which;
using Four = std::array<float, 4>;

// Block 1 as if both ends had heard of it: published {0, 0, 0, 0}, received {4, 4, 4, 8}.
struct Exchanged : OneEnd {
  Correction correction{policy.correction};
  Mixer mixer;

  explicit Exchanged(TransferGuard* guard = nullptr)
      : mixer({.peer = NodeId{2},
               .schema = schema,
               .guard = guard,
               .replicas = replicas,
               .sender = sender,
               .receiver = receiver,
               .correction = correction,
               .counters = counters}) {
    replicas.publish(1, Four{0, 0, 0, 0});
    replicas.mark_said(1, true);
    replicas.receive(1, Four{4, 4, 4, 8});
    replicas.mark_heard(1, 1, true);
    replicas.begin_speaking();  // the next turns
    replicas.begin_hearing();
    replicas.mark_said(1, false);
  }

  // What a look with this half of an exchange adds to the model of the block.
  Four look(float gain, bool trusted = true, const OuterStep& outer = {}) {
    Four model{}, added{};
    mixer.owe(gain);
    mixer.begin_look(outer, trusted, {});
    for (std::size_t block = 0; block < 2; ++block) {
      auto half = mixer.begin_half(block, {.model = model, .update = added, .drift = {}});
      if (!half) continue;
      mixer.measure(*half);
      mixer.decide(*half);
      mixer.apply(*half);
      mixer.account(*half);
      mixer.end_half(*half);
    }
    return added;
  }
};

}  // namespace

TEST_CASE("a pair of replicas is contracted once, by the gains of the exchange") {
  Exchanged end;
  CHECK(end.replicas.is_paired(1));
  CHECK_FALSE(end.replicas.is_paired(0));  // owes a keyframe
  end.replicas.set_contraction(0.5f, 0.25f);
  end.replicas.contract_all_paired();
  const std::uint64_t published = kernels().hash(Four{2, 2, 2, 4}),
                      received = kernels().hash(Four{3, 3, 3, 6});
  CHECK(end.hash(Which::published, 1) == kernels().hash(Four{}));
  CHECK(end.replicas.hash_of(Which::published, 1, true) == published);
  CHECK(end.replicas.hash_of(Which::received, 1, true) == received);
  for (int again = 0; again < 2; ++again) {
    end.replicas.contract(1);
    CHECK(end.hash(Which::published, 1) == published);
    CHECK(end.hash(Which::received, 1) == received);
  }
  end.replicas.check_invariants();
}

TEST_CASE("a block that went whole waits for the next exchange") {
  Exchanged end;
  end.replicas.mark_said(1, true);
  CHECK(end.replicas.is_known(1));
  CHECK_FALSE(end.replicas.is_paired(1));
  end.replicas.invalidate(1);
  CHECK(end.replicas.valid() == 0);
  end.replicas.owe_keyframe(1);
  end.replicas.owe_keyframe(1);
  CHECK(end.replicas.keyframes_owed() == 2);
  end.replicas.check_invariants();
}

TEST_CASE("the listener's half is owed until a look has gone over every block") {
  Exchanged end;
  CHECK(end.look(0.25f) == Four{1, 1, 1, 2});
  CHECK_FALSE(end.mixer.owes());
  CHECK(end.counters.gain == 0.25);
  CHECK(end.look(0) == Four{});  // an opening moves nothing
}

TEST_CASE("of a distrusted peer nothing is taken, and it is counted") {
  Exchanged end;
  CHECK(end.look(0.25f, false) == Four{});
  CHECK(end.counters.transfers_distrusted == 1);
}

TEST_CASE("an unreasonable pull is cut by the guard, and the cut is counted") {
  TransferGuard guard(4, 2);
  Exchanged end(&guard);
  CHECK(end.look(0.25f) == Four{});  // far beyond the block's own norm, which counts as 0.2
  CHECK(end.counters.transfers_clipped == 1);
  end.mixer.disconnect();
  CHECK_FALSE(end.mixer.take_offence());
}

TEST_CASE("a liar's deltas push no further with their momentum than the guard allows") {
  TransferGuard guard(4, 2);
  const TransferGuard::Ask usual{.block = 1, .floats = 4, .norm = 1, .travelled = 1, .own_norm = 1};
  for (std::size_t i = 0; i < TransferGuard::history; ++i)
    REQUIRE(guard.share(NodeId{3}, usual) == 1);
  Exchanged end(&guard);
  REQUIRE_FALSE(
      end.receiver.hear(say_bias(1, 2, CodecId::fp32, {64, 64, 64, 64}), 1, 0, turn_time(0)));
  const std::array<double, 2> travelled{0, 1};
  // It claims to make 16 steps for one of ours, and a gain of next to nothing.
  const Four added = end.look(1e-6f, true, {.share = 0.5, .travelled = travelled, .fastest = 16});
  double squares = 0;
  for (const float value : added) squares += static_cast<double>(value) * value;
  CHECK(std::sqrt(squares) == doctest::Approx(4));  // four times what is usual
}

TEST_CASE(
    "a block that neither turn has said is no news, and one that is not known moves nothing") {
  Exchanged end;
  end.replicas.begin_speaking();
  CHECK(end.look(0.25f) == Four{});
  end.replicas.mark_said(1, false);
  end.replicas.invalidate(1);
  CHECK(end.look(0.25f) == Four{});
}
