// core/exchange/link.h - one neighbour's half of the exchange of models.
//
// The problem: two nodes that train at their own pace shall pull their models together over a
// connection that may be slow, without either waiting, without a replica that differs between the
// two ends, and without moving the mean of the models (what one gives, the other must take).
//
// The answer: the two ends take turns. Each end holds two replicas, `published` (what the other
// holds of us) and `received` (what we hold of it). The end that has the turn *speaks*: it sends
// deltas of the blocks that changed enough, and passes the turn on. An *exchange* is two turns: one
// end opens it when its model has changed enough, the other answers at its next look. After the
// answer both ends know the same fresh pair of replicas, and both apply the same transfer with
// opposite sign to every block that either of them has said:
//
//     answer of speaker s to listener l, replicas p_s (after the turn) and p_l:
//         x_s += gain_speaker · (p_l − p_s)        x_l += gain_listener · (p_s − p_l)
//
// with gain_speaker·weight_s = gain_listener·weight_l, so Σ weight·x is kept exactly (up to
// rounding), whatever the speeds, delays and codecs. The speaker applies its half at once, the
// listener at its first look at the model after it. The two replicas are contracted by the same
// gains, at both ends and without a word (EXCHANGE.md beside this file).
//
// A Link composes the parts of one *epoch*, that is of all turns since both ends began with empty
// replicas: ReplicaPair (what both ends hold), TurnSender and TurnReceiver (the two directions),
// Mixer (our half of an exchange) and Correction. An epoch outlives its sessions: after a reconnect
// both ends compare version and hash of every block and go on. Forgetting an epoch, or beginning a
// fresh one, replaces it as a whole. Whose turn it is follows from the numbers of the turns.
//
// Pure; one owner, core strand. Memory: 2·P floats (half of that where both ends ask for bf16) and
// the records of one turn, with outer momentum of three.
#pragma once

#include <optional>
#include <utility>

#include "core/exchange/mixer.h"
#include "core/exchange/replica_pair.h"
#include "core/exchange/turn_receiver.h"
#include "core/exchange/turn_sender.h"
#include "core/wire/control.h"

namespace gossipd {

class Link {
 public:
  // `guard` judges transfers, for all links of the node; null: all are taken. `workers` do several
  // blocks at once, which changes no result; null: one after the other. All outlive the link.
  Link(NodeId self, NodeId peer, const Schema& schema, const ExchangePolicy& policy,
       TransferGuard* guard = nullptr, Workers* workers = nullptr);

  // ---- opening: after both ends sent Ready on one session ----
  // Fills epoch, spoken and heard of a Ready to send.
  void describe(Ready&) const;
  // True: both remember the same epoch; send replica_state() and wait for the other's. False: a
  // fresh one; both replicas are empty and the link is open at once. `protocol` is what both ends
  // speak. An end that has no model may have said in which order it wants the blocks: see orders().
  // `initial`: the model whose hash `mine` names. Where `theirs` names the same, both replicas
  // begin as that model, and an end without a model holds a complete one at once.
  bool open(const Ready& mine, const Ready& theirs, std::uint32_t protocol,
            const SharedModel& initial = nullptr);
  // Whether the blocks named there are some of the schema's, in order; open() needs that.
  [[nodiscard]] bool orders(const Ready& theirs) const;
  [[nodiscard]] ReplicaState replica_state() const;
  // Afterwards it is open, or closed and forgotten: to say again what the peer lacks is no less
  // than to begin, and a fresh epoch says it in pieces. The session is to be closed then.
  [[nodiscard]] std::optional<Reject> on_replica_state(std::span<const std::byte> message,
                                                       Instant now);
  void close();   // the session is gone; the epoch is remembered
  void forget();  // and now it is not

  // ---- whose turn it is ----
  [[nodiscard]] bool is_open() const { return state_ == State::open; }
  [[nodiscard]] bool my_turn() const { return is_open() && epoch_->is_mine(); }
  // A turn of ours has begun and not ended, perhaps before the session was lost.
  [[nodiscard]] bool speaking() const { return epoch_->sender.is_speaking(); }
  [[nodiscard]] bool owes_answer() const { return my_turn() && epoch_->receiver.heard_opening(); }
  [[nodiscard]] bool awaits_answer() const { return is_open() && epoch_->spoke_opening(); }
  // The peer has begun a turn and not ended it, or has not answered yet, or it has not said what it
  // holds of the epoch.
  [[nodiscard]] bool is_owed_a_turn() const {
    return state_ == State::comparing ||
           (is_open() && !epoch_->is_mine() &&
            (epoch_->receiver.is_hearing() || epoch_->spoke_opening()));
  }
  // our half of the turn heard has not been applied yet
  [[nodiscard]] bool owes_transfer() const { return epoch_->mixer.owes(); }
  // Something of an exchange that is under way: an answer, our half, or the rest of a turn.
  [[nodiscard]] bool owes_at_once() const {
    return my_turn() && (owes_answer() || owes_transfer() || speaking());
  }
  // The next turn would be an opening of this end: the peer has applied its half of the last
  // transfer, and so has this end, so ending the session now moves no mean.
  [[nodiscard]] bool is_at_rest() const { return my_turn() && !owes_at_once(); }
  [[nodiscard]] bool owes_keyframes() const { return epoch_->replicas.keyframes_owed() > 0; }
  // Own complete turns since both ends began with empty replicas, or the initial model.
  [[nodiscard]] std::uint32_t turns_spoken() const { return (epoch_->sender.spoken() + 1) / 2; }
  [[nodiscard]] Step step_told() const { return epoch_->sender.speech().step; }  // by the last turn
  // When the snapshot of our last complete turn was taken, also of an earlier epoch.
  [[nodiscard]] Instant spoken_at() const { return spoken_at_; }

  // ---- listening ----
  // A refused message changes nothing; a refused record changes nothing but asks for a keyframe.
  [[nodiscard]] std::optional<Reject> on_turn(std::span<const std::byte> message,
                                              double rtt_seconds, Instant now);
  // Returns how many of these blocks were not to go whole yet.
  std::size_t on_resync(const Resync&);
  [[nodiscard]] std::vector<std::uint32_t> take_resync() { return epoch_->receiver.take_resync(); }

  // ---- speaking: look_begin(), look() at every block, begin(), speak() every block, end() ----
  // Applies what is left to do of the turn that was heard, then measures the change of one block;
  // the sums end up in counters().change. `drift` is the own displacement per own step (empty: no
  // future position). `trusted` false: nothing of the peer's model is taken, though it may take
  // ours.
  void look_begin(std::span<const float> drift, double own_step_seconds, const OuterStep& outer,
                  Instant now, bool trusted = true);
  void look(std::size_t block, std::span<const float> model, std::span<float> update,
            std::span<const float> drift, std::size_t count = 1);  // of so many blocks
  // of a block, relative; a block that owes a keyframe counts as 1
  [[nodiscard]] double largest_change() const;
  void begin(const Speech&, Instant now);
  [[nodiscard]] bool spoken_all() const { return epoch_->sender.is_done(); }
  // until all are spoken
  [[nodiscard]] std::size_t next_block() const { return epoch_->sender.next_block(); }
  // Encodes the next `count` blocks, those that changed enough, and mixes. False: `model + update`
  // is not finite in one of them; what comes before it has been said.
  [[nodiscard]] bool speak(std::span<const float> model, std::span<float> update,
                           std::span<const float> drift, Instant now, std::size_t count = 1);
  [[nodiscard]] std::size_t blocks_left() const { return epoch_->sender.blocks_left(); }
  [[nodiscard]] std::size_t block_ahead(std::size_t ahead) const {
    return epoch_->sender.block_ahead(ahead);
  }
  // After the last block: passes the turn.
  void end(Instant now);
  // the one spoken last
  [[nodiscard]] std::uint64_t bytes_of_turn() const { return epoch_->sender.bytes_of_turn(); }
  // Something of the peer's model is taken, as of the last look.
  [[nodiscard]] bool trusts_peer() const { return epoch_->mixer.trusts(); }
  // The peer's model has pulled too far too often since the last call.
  [[nodiscard]] bool take_offence() { return epoch_->mixer.take_offence(); }
  [[nodiscard]] std::optional<float> take_gain() { return epoch_->mixer.take_gain(); }
  // Messages ready to be sent, in order.
  [[nodiscard]] std::vector<SharedBytes> take_messages() { return epoch_->sender.take_messages(); }

  // ---- the replicas ----
  using Which = ReplicaPair::Which;
  // Of a block as both ends know it: an exchange that the other end has heard to its end counts as
  // done. (The end that has spoken the answer contracts its replicas when it hears the next turn,
  // since it may have to say the answer again; the other end at its next look.)
  [[nodiscard]] std::uint64_t hash_of(Which which, std::size_t index) const;
  // False: a block whose record was refused or lost, which goes whole next.
  [[nodiscard]] bool is_known(Which which, std::size_t index) const;
  [[nodiscard]] bool has_replicas() const { return epoch_->replicas.exists(); }
  [[nodiscard]] bool in_bf16() const { return epoch_->replicas.in_bf16(); }
  // Blocks of the peer's model that are held; all of them: a joiner can adopt it.
  [[nodiscard]] std::size_t received_blocks() const { return epoch_->replicas.valid(); }
  [[nodiscard]] bool received_complete() const {
    return received_blocks() == schema_.blocks().size();
  }
  // `out` is of the block's size
  void copy_received(std::size_t block, std::span<float> out) const;
  // Of the last message heard.
  [[nodiscard]] const std::vector<std::uint32_t>& blocks_heard() const {
    return epoch_->receiver.blocks_heard();
  }
  // What tells one content of the peer's block from another, while this end has no model of its
  // own: then only what is heard changes it.
  [[nodiscard]] std::pair<std::uint64_t, Version> received_as(std::size_t block) const {
    return {epoch_->id, epoch_->replicas.state(block).received};
  }

  // The peer's block is still that of the initial model, with which the link began.
  [[nodiscard]] bool received_initial(std::size_t block) const {
    return epoch_->replicas.received_untouched(block);
  }

  // ---- the peer ----
  [[nodiscard]] float peer_weight() const { return report_.weight; }
  [[nodiscard]] std::uint32_t peer_in_flight() const { return report_.in_flight; }
  // when the peer's snapshot was taken that the last message told of, by our clock
  [[nodiscard]] Instant heard_at() const { return report_.heard_at; }
  // Age of what the peer published, as the receiver's clock and half the round trip tell it.
  [[nodiscard]] double age_seconds(Instant now) const;
  [[nodiscard]] double peer_step_seconds() const { return report_.step_seconds; }
  // The peer's loss, forecast from its turns to now; 0: not known, or loss trust is off.
  [[nodiscard]] double peer_loss(Instant now) const;
  // by the peer's last turn; 0: none yet
  [[nodiscard]] double loss_said() const { return report_.loss; }

  [[nodiscard]] const ExchangeCounters& counters() const { return counters_; }
  ExchangeCounters& counters() { return counters_; }
  void check_invariants() const;

 private:
  enum class State : std::uint8_t {
    closed,     // no session
    comparing,  // a session; what the other end holds of the epoch is not known yet
    open,
  };
  // Everything since both ends began with empty replicas.
  struct Epoch {
    Epoch(Link& link, std::uint64_t number, std::uint32_t protocol_spoken, bool this_end_first,
          ReplicaPair&& pair);
    [[nodiscard]] std::uint32_t next_turn() const;
    [[nodiscard]] bool is_mine() const;        // the next turn, or the one under way
    [[nodiscard]] bool spoke_opening() const;  // and it has not been answered

    const std::uint64_t id;
    const std::uint32_t protocol;
    const bool speaks_first;  // this end has turn 1
    ReplicaPair replicas;
    Correction correction;
    TurnSender sender;
    TurnReceiver receiver;
    Mixer mixer;
    std::vector<float> changes;  // of each block at the last look, relative
  };

  [[nodiscard]] bool remembers(const Ready& mine, const Ready& theirs,
                               std::uint32_t protocol) const;
  [[nodiscard]] FuturePosition position(double gain, Instant own_at, double own_step_seconds,
                                        Instant now) const;
  [[nodiscard]] OwnModel block_of(std::size_t index, std::span<const float> model,
                                  std::span<float> update, std::span<const float> drift) const;

  const NodeId self_;
  const NodeId peer_;
  const Schema& schema_;
  const ExchangePolicy& policy_;
  TransferGuard* const guard_;
  Workers* const workers_;
  State state_ = State::closed;
  ExchangeCounters counters_;
  PeerReport report_;               // of the last epoch that was begun
  std::optional<Epoch> epoch_;      // always one; id 0 and without replicas: none is remembered
  ChangeNorms unpublished_change_;  // of the blocks looked at so far
  Instant spoken_at_{};
};

}  // namespace gossipd
