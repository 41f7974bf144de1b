// core/exchange/mixer.h - this end's half of an exchange, on its own model.
//
// The problem: when an exchange is over both ends hold the same fresh pair of replicas and must
// apply the same transfer with opposite sign, the speaker of the answer at once and its listener at
// its next look, block by block, although a neighbour may be far off, old or a liar.
//
// The answer: of every block that one of the two turns has said, `gain · (received − published)`
// goes into the update, cut by the TransferGuard, moved by the Correction, and with outer momentum
// as far as the guard's radius reaches. A listener owes() its half until look() has gone over all
// blocks. Pure; one owner. The replicas stay as they are: both ends contract them alike anyway.
#pragma once

#include "core/base/workers.h"
#include "core/correction/correction.h"
#include "core/exchange/transfer_guard.h"
#include "core/exchange/turn_receiver.h"
#include "core/exchange/turn_sender.h"

namespace gossipd {

// A link's part of the outer momentum, for one look.
struct OuterStep {
  // of the two ends' mean displacement: the momentum over the node's links; 0: none
  double share = 0;
  // by this node's own steps so far, for each block: the sum of the norms; empty: at rest
  std::span<const double> travelled;
  // how many times as far the fastest neighbour's steps lead in the same time; at least 1
  double fastest = 1;
};

// The own model at a look: `drift` is the displacement per own step; empty: no future position.
struct OwnModel {
  std::span<const float> model;
  std::span<float> update;
  std::span<const float> drift;
};

class Mixer {
 public:
  // This end's half on one block, under way: measure(), decide(), apply(), account(). The first and
  // the third may be done for several blocks at once (without a drift), the others one after the
  // other in the order of the blocks.
  struct Half {
    std::size_t block = 0;
    OwnModel own{};
    float gain = 0;
    FuturePosition position{};
    bool begins = false;    // with it the replicas are compared anew
    ChangeNorms norms{};    // of the difference of the replicas
    bool measured = false;  // both replicas are known
    double taken = 0;       // this share of the transfer
    double left = 0;        // what it leaves of the guard's radius, for the outer momentum
    bool cut = false;       // that was not enough
    double travelled = 0;   // as far as own steps have led since the last exchange
    double transfer_squared = 0, correction_squared = 0;
  };

  // What it works on; all must outlive it. `guard` null: every transfer is taken.
  struct Parts {
    NodeId peer;
    const Schema& schema;
    TransferGuard* guard;
    const ReplicaPair& replicas;
    const TurnSender& sender;
    const TurnReceiver& receiver;
    Correction& correction;
    ExchangeCounters& counters;
  };
  explicit Mixer(const Parts& parts);

  // The turn heard last was an answer: its half is to be applied with this gain.
  void owe(float gain);
  [[nodiscard]] bool owes() const { return owed_gain_ > 0; }

  // A look begins, or the model was looked at for a turn. `trusted` false: nothing is taken.
  void begin_look(const OuterStep& outer, bool trusted, const FuturePosition& position);
  // What is owed to this block, after those before it; nothing: nothing is.
  [[nodiscard]] std::optional<Half> begin_half(std::size_t block, const OwnModel& own) const;
  void end_half(const Half&);  // after account()
  // A turn that answers has a half of its own; what an opening begins with is the look's.
  void begin_turn(const Speech& speech, const FuturePosition& position);
  // Of a block that has been said, or passed over, by then; `paired_before`: both ends held it
  // before that.
  [[nodiscard]] Half half_of_turn(std::size_t block, float gain, bool paired_before,
                                  const OwnModel& own) const;

  void measure(Half&) const;
  void decide(Half&);
  void apply(Half&) const;
  void account(const Half&);

  void end_turn(const Speech& speech);

  [[nodiscard]] bool trusts() const { return trusted_; }  // at the last look
  [[nodiscard]] float owed_gain() const { return owed_gain_; }
  // The peer's model has pulled too far too often since the last call.
  [[nodiscard]] bool take_offence() { return std::exchange(offends_, false); }
  // The gain of an exchange that has ended since the last call; nothing: of none, or not all that
  // it asked for was taken.
  [[nodiscard]] std::optional<float> take_gain() { return std::exchange(taken_gain_, {}); }
  void disconnect();

 private:
  void ask(Half&, const TransferGuard::Ask&);
  void apply_outer_momentum(Half&) const;
  [[nodiscard]] double outer_share_of(Half&, double squares, std::size_t places) const;
  void finish(float gain);

  const Parts parts_;
  float owed_gain_ = 0;          // of our half of the turn heard; 0: applied
  std::size_t owed_blocks_ = 0;  // to so many blocks it has been applied
  FuturePosition look_position_, turn_position_;
  OuterStep outer_;
  bool trusted_ = true;            // at this look
  std::vector<double> travelled_;  // OuterStep::travelled at the last exchange; negative: none yet
  ChangeNorms apart_;              // of the two replicas, of the blocks mixed so far
  double transfer_squared_ = 0, correction_squared_ = 0;  // of this turn and the look before it
  bool clipped_ = false;             // of the transfer that is being applied, a block
  std::optional<float> taken_gain_;  // take_gain()
  bool offends_ = false;
};

}  // namespace gossipd
