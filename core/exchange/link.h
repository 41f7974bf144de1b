// core/exchange/link.h - one neighbour's half of the conversation about the model.
//
// The problem: two nodes that train at their own pace shall pull their models together over a
// connection that may be slow, without either waiting, without a replica that differs between the
// two ends, and without moving the mean of the models (what one gives, the other must take).
//
// The answer: a link is a conversation in turns. Each end holds two replicas, `published` (what
// the other holds of us) and `received` (what we hold of it). Who has the turn *speaks*: sends
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
// listener at its first look at the model after it. The two replicas are drawn together by the same
// gains, at both ends and without a word (EXCHANGE.md beside this file).
//
// Encoded records are kept until the other end has answered; after a reconnect both ends compare
// version and hash of every block, and what was lost is sent again if its base still matches, as
// a keyframe if not. A block that goes whole carries its hash, which is checked before the block is
// taken. Pure; one owner, core strand. Memory: 2·P floats (half of that where both ends ask for
// bf16) and the records of one turn, with outer momentum of three.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>

#include "core/codec/kernels.h"
#include "core/correction/future_position.h"
#include "core/correction/loss_trust.h"
#include "core/exchange/counters.h"
#include "core/exchange/policy.h"
#include "core/exchange/replica.h"
#include "core/exchange/transfer_guard.h"
#include "core/exchange/turn_bounds.h"
#include "core/model/schema.h"
#include "core/wire/control.h"
#include "core/wire/turn.h"

namespace gossipd {

// What a node decides about a turn before it speaks.
struct Speech {
  Codec codec;  // for parameter blocks; small and statistic blocks take a finer one
  // relative change from which on a block is sent; 0: every block that changed at all; infinite:
  // none
  double threshold = 0;
  // the same, or what the whole model was held against, for the counters
  double threshold_shown = 0;
  float gain_self = 0;  // both 0: an opening
  float gain_peer = 0;
  float weight = 1;
  std::uint32_t in_flight = 1;  // own openings without an answer, this one included
  Step step = 0;
  float step_seconds = 0;
  Instant snapshot_at{};
  double trust = 1;  // factor on the peer's weight that is in the gains, for the counters
  double loss = 0;   // smoothed training loss at `step`; 0: not known
  double own_step_seconds = 0;
};

// A link's part of the outer momentum, for one look.
struct OuterStep {
  double momentum = 0;  // 0: none
  // of the two ends' mean displacement: the momentum over the node's links
  double share = 0;
  // by this node's own steps so far, for each block: the sum of the norms; empty: at rest
  std::span<const double> travelled;
};

class Link {
 public:
  // `guard` judges transfers, for all links of the node; null: all are taken. It outlives the link.
  Link(NodeId self, NodeId peer, const Schema& schema, const ExchangePolicy& policy,
       TransferGuard* guard = nullptr);

  // ---- opening: after both ends sent Ready on one session ----
  // Fills conversation, spoken and heard of a Ready to send.
  void describe(Ready&) const;
  // True: both remember the same conversation; send replica_state() and wait for the other's.
  // False: a fresh one; both replicas are empty and the link is open at once.
  // `protocol` is what both ends speak. An end that has no model may have said in which order it
  // wants the blocks: see orders().
  bool open(const Ready& mine, const Ready& theirs, std::uint32_t protocol, Instant now);
  // Whether the blocks named there are some of the schema's, in order; open() needs that.
  [[nodiscard]] bool orders(const Ready& theirs) const;
  [[nodiscard]] ReplicaState replica_state() const;
  [[nodiscard]] std::optional<Reject> on_replica_state(std::span<const std::byte> message,
                                                       Instant now);
  void close();   // the session is gone; the conversation is remembered
  void forget();  // and now it is not

  [[nodiscard]] bool is_open() const { return open_; }
  [[nodiscard]] bool my_turn() const { return open_ && my_turn_; }
  [[nodiscard]] bool speaking() const { return speaking_; }
  // Blocks of the peer's model that are held; all of them: a joiner can adopt it.
  [[nodiscard]] std::size_t received_blocks() const { return received_valid_; }
  [[nodiscard]] bool received_complete() const {
    return received_valid_ == schema_.blocks().size();
  }
  // when the peer's snapshot was taken that the last message told of, by our clock
  [[nodiscard]] Instant heard_at() const { return hearing_at_; }
  [[nodiscard]] bool owes_answer() const { return my_turn() && heard_opening_; }
  [[nodiscard]] bool awaits_answer() const { return open_ && !my_turn_ && spoke_opening_; }
  // our half of the turn heard has not been applied yet
  [[nodiscard]] bool owes_transfer() const { return heard_gain_ > 0; }
  // Something of an exchange that is under way: an answer, our half, or the rest of a turn.
  [[nodiscard]] bool owes_at_once() const {
    return my_turn() && (owes_answer() || owes_transfer() || speaking());
  }
  [[nodiscard]] bool owes_keyframes() const { return keyframes_owed_ > 0; }
  [[nodiscard]] Instant spoken_at() const { return published_at_; }

  // ---- listening ----
  // A refused message changes nothing; a refused record changes nothing but asks for a keyframe.
  [[nodiscard]] std::optional<Reject> on_turn(std::span<const std::byte> message,
                                              double rtt_seconds, Instant now);
  void on_resync(const Resync&);
  [[nodiscard]] std::vector<std::uint32_t> take_resync();

  // ---- speaking: look(), then begin(), then speak() for every block, then end() ----
  // Applies what is left to do of the turn that was heard, then measures the change of one block;
  // the sums end up in counters().change. `drift` is the own displacement per own step (empty: no
  // future position). `trusted` false: nothing of the peer's model is taken, though it may take
  // ours.
  void look_begin(std::span<const float> drift, double own_step_seconds, const OuterStep& outer,
                  Instant now, bool trusted = true);
  void look(std::size_t block, std::span<const float> model, std::span<float> update,
            std::span<const float> drift);
  // of a block, relative; a block that owes a keyframe counts as 1
  [[nodiscard]] double largest_change() const;
  void begin(const Speech&, Instant now);
  [[nodiscard]] bool spoken_all() const { return next_block_ == blocks_.size(); }
  // until all are spoken
  [[nodiscard]] std::size_t next_block() const {
    return order_.empty() ? next_block_ : order_[next_block_];
  }
  // Mixes and, if it changed enough, encodes the next block. False: `model + update` is not finite
  // there.
  [[nodiscard]] bool speak(std::span<const float> model, std::span<float> update,
                           std::span<const float> drift, Instant now);
  // After the last block: passes the turn.
  void end(Instant now);
  // the one spoken last
  [[nodiscard]] std::uint64_t bytes_of_turn() const {
    return counters_.bytes_sent - bytes_before_turn_;
  }
  // The peer's model has pulled too far too often since the last call.
  [[nodiscard]] bool take_offence() { return std::exchange(offends_, false); }
  // Messages ready to be sent, in order.
  [[nodiscard]] std::vector<SharedBytes> take_messages();

  enum class Which : std::uint8_t { published, received };
  // Of a block as both ends know it: an exchange that the other end has heard to its end counts as
  // done. (The end that has spoken the answer draws its replicas together when it hears the next
  // turn, since it may have to say the answer again; the other end at its next look.)
  [[nodiscard]] std::uint64_t hash_of(Which which, std::size_t index) const;
  // False: a block whose record was refused or lost, which goes whole next.
  [[nodiscard]] bool is_known(Which which, std::size_t index) const {
    return which == Which::published ? !blocks_[index].keyframe_owed
                                     : blocks_[index].received_valid;
  }
  [[nodiscard]] bool has_replicas() const { return published_.floats() > 0; }
  [[nodiscard]] bool in_bf16() const { return published_.is_narrow(); }
  // `out` is of the block's size
  void copy_received(std::size_t block, std::span<float> out) const;
  // Of the last message heard.
  [[nodiscard]] const std::vector<std::uint32_t>& blocks_heard() const { return blocks_heard_; }
  // What tells one content of the peer's block from another, while this end has no model of its
  // own: then only what is heard changes it.
  [[nodiscard]] std::pair<std::uint64_t, Version> received_as(std::size_t block) const {
    return {epoch_, blocks_[block].received};
  }
  [[nodiscard]] const ExchangeCounters& counters() const { return counters_; }
  ExchangeCounters& counters() { return counters_; }
  [[nodiscard]] float peer_weight() const { return peer_weight_; }
  [[nodiscard]] std::uint32_t peer_in_flight() const { return peer_in_flight_; }
  // Age of what the peer published, as the receiver's clock and half the round trip tell it.
  [[nodiscard]] double age_seconds(Instant now) const;
  [[nodiscard]] double peer_step_seconds() const { return peer_step_seconds_; }
  // The peer's loss, forecast from its turns to now; 0: not known, or policy.loss_trust is off.
  [[nodiscard]] double peer_loss(Instant now) const;
  // by the peer's last turn; 0: none yet
  [[nodiscard]] double loss_said() const { return loss_said_; }
  void check_invariants() const;

 private:
  struct BlockState {
    Version published = 0;
    Version received = 0;
    bool keyframe_owed = true;  // the peer's replica of this block is unknown or wrong
    bool received_valid = false;
    bool said = false;        // in the turn spoken last …
    bool heard = false;       // … in the one heard last
    bool said_whole = false;  // a keyframe or mirror, in these turns
    bool heard_whole = false;
    // the two replicas are to be drawn together by the last exchange, and are not yet
    bool to_draw = false;
    float change = 0;  // relative, at the last look
    // OuterStep::travelled at the last exchange; negative: there was none yet
    double travelled = -1;
    double drift_square = 0;  // moving average of mean(drift²); only with adaptive curvature
  };
  struct Unacknowledged {  // an encoded record
    std::uint32_t block;
    Version version;
    Codec codec;
    Bytes record;
  };

  void start_fresh(bool i_speak_first, bool in_bf16);
  void set_keyframe_owed(BlockState&, bool owed);
  void set_received_valid(BlockState&, bool valid);
  void refuse(std::size_t block, Reject reason);
  void apply_record(const TurnRecord&);
  [[nodiscard]] std::optional<Reject> apply_whole(const TurnRecord&);
  void append(std::uint32_t block, Codec codec, std::span<const float> target, bool fresh = false);
  [[nodiscard]] ChangeNorms change_of(const Block& block, std::span<const float> model,
                                      std::span<const float> update) const;
  void become_received(const Block& block);
  void publish(const Block& block, std::span<const float> target);
  void append_keyframe(std::uint32_t block, std::span<const float> target);
  [[nodiscard]] bool is_full() const;
  void flush(bool last, Instant now);
  [[nodiscard]] Codec codec_for(const Block&) const;
  [[nodiscard]] bool is_paired(const BlockState&) const;
  void draw_replicas(std::size_t index);
  void contract_replicas(std::span<float> own, std::span<float> theirs) const;
  [[nodiscard]] std::span<const float> mixing_target(std::span<const float> theirs,
                                                     std::span<const float> own,
                                                     std::vector<float>& settled) const;
  void mix(std::size_t index, float gain, const FuturePosition&, std::span<const float> model,
           std::span<float> update, std::span<const float> drift);
  void mixed(float gain);
  [[nodiscard]] double share_of(std::size_t index, double norm, double travelled, double own_norm);
  void apply_outer_momentum(std::size_t index, double travelled, double taken,
                            std::span<float> update);
  [[nodiscard]] FuturePosition move_received(double gain, Instant own_at, double own_step_seconds,
                                             Instant now) const;
  double correct(const Block&, BlockState&, const FuturePosition&, std::span<const float> model,
                 std::span<float> update, std::span<const float> drift);

  const NodeId self_;
  const NodeId peer_;
  const Schema& schema_;
  const ExchangePolicy& policy_;
  TransferGuard* const guard_;
  Replica published_, received_;
  std::vector<BlockState> blocks_;
  std::size_t received_valid_ = 0;
  std::size_t keyframes_owed_ = 0;

  std::uint64_t epoch_ = 0;
  std::uint32_t protocol_ = 0;  // of the conversation
  bool open_ = false;
  bool awaiting_state_ = false;
  bool my_turn_ = false;
  bool speaking_ = false;
  std::uint32_t spoken_ = 0, heard_ = 0;         // last complete turns
  bool heard_opening_ = false;                   // the turn heard last wants an answer
  bool spoke_opening_ = false;                   // and so does the one spoken last
  float heard_gain_ = 0;                         // of our half of the turn heard; 0: applied
  std::size_t heard_blocks_ = 0;                 // of which that has been applied to so many blocks
  float contract_own_ = 0, contract_their_ = 0;  // gains by which replicas are drawn together
  std::uint32_t hearing_turn_ = 0;               // to which the flags `heard` belong
  bool hearing_ = false;                         // a turn has begun and not ended
  TurnBounds bounds_;                            // of that turn

  Speech speech_;
  FuturePosition heard_future_, own_future_;
  std::size_t next_block_ = 0;        // so many are spoken of this turn …
  std::vector<std::uint32_t> order_;  // … in this order; empty: the schema's
  Bytes message_;
  std::uint16_t message_records_ = 0;
  // that its records tell of: work for the other end, in one piece
  std::size_t message_floats_ = 0;
  std::deque<SharedBytes> outbox_;
  std::vector<Unacknowledged> unacknowledged_;  // the peer has not answered for them
  // Only with outer momentum: the deltas of our opening, and of the turn heard last the latest of
  // each block.
  std::vector<Unacknowledged> opened_;
  std::unordered_map<std::uint32_t, Unacknowledged> heard_records_;
  bool reopened_ = false;     // no turn has been heard to its end since the link was opened again
  bool resend_turn_ = false;  // the last turn spoken was not heard to its end
  std::vector<std::uint32_t> resync_;
  std::vector<std::uint32_t> blocks_heard_;
  std::uint64_t bytes_before_turn_ = 0;
  ChangeNorms unpublished_change_;  // of the blocks looked at so far
  ChangeNorms apart_;               // of the two replicas, of the blocks mixed so far
  double transfer_squared_ = 0, correction_squared_ = 0;
  OuterStep outer_;
  bool trusted_ = true;   // at this look
  bool clipped_ = false;  // of the transfer that is being applied, a block
  bool offends_ = false;

  float peer_weight_ = 1;
  double loss_said_ = 0;
  std::uint32_t peer_in_flight_ = 1;
  double peer_step_seconds_ = 0;
  std::unique_ptr<LossForecaster> peer_loss_;  // null: loss trust is off
  // when the peer's snapshot of the last complete turn was taken, by our clock
  Instant received_at_{};
  Instant hearing_at_{};
  Instant published_at_{};  // when our snapshot of the last turn spoken was taken
  bool received_once_ = false, published_once_ = false;
  ExchangeCounters counters_;
};

}  // namespace gossipd
