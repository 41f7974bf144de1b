// core/node/exchange_round.h - a snapshot's way through the exchange, back to the trainer.
//
// The problem: a snapshot of the model has to be judged, said to the neighbours that are to hear
// it, mixed with what they said, and given back as one update, while heartbeats and messages want
// their turn in between: a pass over a large model takes longer than they can wait.
//
// The answer: a state machine that does about a block of work at a time. Its way, which a snapshot
// goes once:
//
//     with_trainer  the trainer has the buffer
//     waiting       the snapshot is here; nothing has a reason to begin (a node at rest)
//     judge         what own steps have done since the last round: believed, or taken back
//     look          on one link after the other: apply what was heard, measure what changed. Before
//                   the first link a block is prepared: the distance of own steps is added up, and
//                   its update begins. (Every round has this state; elsewhere a *look* is a round
//                   that may open exchanges, see look_pace.h.)
//     speak         where something is to be said, say it block by block
//     hand_back     the update becomes part of what the trainer is known to have
//
// Of links that could open an exchange only the one with the largest change does so in a round: an
// exchange takes the models as they are, so the next one had better wait for its outcome. Answers
// are spoken on every link that owes one.
//
// A model that is not finite breaks the round off: the state is `resting`, as before the first
// update, until adopt() or begin(). The links belong to the caller, which lists them with every
// call and sends what a call returns. With Workers a piece of work is several blocks, divided among
// them; sums are added in the order of the blocks, so the results are the same. Core strand.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/base/workers.h"
#include "core/exchange/trigger.h"
#include "core/membership/directory.h"
#include "core/node/bulk_window.h"
#include "core/node/final_model.h"
#include "core/node/look_pace.h"
#include "core/node/model_buffers.h"
#include "core/node/own_steps.h"
#include "core/node/peer_trust.h"
#include "core/node/round_link.h"

namespace gossipd {

// The caller's knowledge at a call. `links`: all of them, open or not, in the order of peers.
struct RoundContext {
  Instant now{};
  Phase phase = Phase::joining;
  std::span<RoundLink> links;
  const Directory& directory;
  Random& random;
  float weight = 1;       // of this node's model in mixing
  double weight_max = 1;  // no peer's is believed to be larger

  [[nodiscard]] bool is_training() const { return phase == Phase::training; }
  [[nodiscard]] bool is_interrupted() const {
    return phase == Phase::paused || phase == Phase::waiting_for_trainer;
  }
};

// The largest relative distance to a model that an open link tells of; 1: not known.
[[nodiscard]] double consensus_distance(std::span<const RoundLink> links, std::size_t others);

struct RoundOutcome {
  enum class Kind : std::uint8_t {
    under_way,    // nothing but messages yet
    handed_back,  // `update` is for the trainer
    taken_back,   // `update` brings the trainer's former model back (`why`)
    broken,       // the own model is not finite (`why`): the round is resting
  };
  Kind kind = Kind::under_way;
  std::vector<std::pair<NodeId, SharedBytes>> messages;  // to be sent first, in this order
  Update update;                                         // batch and rate are the caller's
  std::string why;
  std::vector<NodeId> offenders;  // peers whose models keep pulling too far; if handed_back
  double moved_at_rest = 0;       // by neighbours, relative to the model's norm; 0 while training
};

class ExchangeRound {
 public:
  // All must outlive it; the schema is set before prepare(). `workers` null: a block at a time.
  ExchangeRound(const ExchangePolicy& policy, const Schema& schema, Workers* workers = nullptr)
      : policy_(policy),
        schema_(schema),
        workers_(workers),
        own_steps_(policy, schema),
        trigger_(policy),
        by_link_{{}, {}, {}, {}, BulkWindow(policy.bulk_window_bytes)} {}

  // The trainer stands, at own step `step`.
  void prepare(RoundBuffers buffers, Step step);
  // The first update, of zeros, while resting.
  [[nodiscard]] Update begin(bool training);
  // While resting: a model from elsewhere fills both of copies(), and replaces the trainer's.
  [[nodiscard]] ModelBuffers::Copies copies() { return buffers_.copies(); }
  [[nodiscard]] Update adopt(bool training);

  // In answer to an update. `open_links`: as many are open now.
  void on_snapshot(Snapshot snapshot, std::size_t open_links, Instant now);
  // Right after: the snapshot itself says that it is not finite. `taken_back`, `broken`, or
  // `under_way`: the round waits with the former model.
  [[nodiscard]] RoundOutcome on_not_finite(bool training);
  // A round that waits begins if anything gives it a reason. While the node trains every snapshot
  // is looked at. At rest a round begins when a link has something to do.
  void begin_if_due(const RoundContext&);
  [[nodiscard]] bool has_work() const { return stage_ > Stage::waiting; }
  // About a block of it.
  [[nodiscard]] RoundOutcome work(const RoundContext&);
  // True, once for each update: an exchange waits for the trainer's next snapshot, which is to come
  // at once, since the models of an exchange grow apart while it waits.
  [[nodiscard]] bool recalls(std::span<const RoundLink> links);
  // No step follows: the final exchange begins, after a pause.
  void stand_still(Duration pause, Instant now) { pace_.stand_still(pause, now); }
  // The model has moved at rest: each neighbour is to be told of it once more.
  void tell_again() {
    by_link_.told.clear();
    by_link_.settled.clear();
  }
  // The last steps are known on every link: each neighbour has been told of this node's at rest, or
  // would hear little, and has told of its own.
  [[nodiscard]] bool has_said_all(std::span<const RoundLink> links,
                                  const Directory& directory) const;
  // A node that makes no steps looks again as soon as it may: in the final exchange, while it
  // leaves, and where it has only answered, as it may have news for its other neighbours.
  [[nodiscard]] bool looks_again(Phase phase) const {
    return phase == Phase::finishing || phase == Phase::leaving || pace_.answers_only();
  }

  [[nodiscard]] bool is_resting() const { return stage_ == Stage::resting; }
  [[nodiscard]] bool is_waiting() const { return stage_ == Stage::waiting; }
  // The last snapshot without its model; at the start the step that prepare() was told.
  [[nodiscard]] const Snapshot& last() const { return last_; }
  [[nodiscard]] Instant snapshot_at() const { return snapshot_at_; }
  [[nodiscard]] Instant rest_look() const { return pace_.rest_look(); }
  // Between two looks of a node that makes no steps.
  [[nodiscard]] Duration rest_pause() const;
  [[nodiscard]] const OwnSteps& own_steps() const { return own_steps_; }
  [[nodiscard]] std::string trouble() const {
    const bool told = last_.learning_rate_peak > 0;
    return own_steps_.trouble(told ? last_.learning_rate_peak : last_.learning_rate);
  }
  // Own steps made while a link was open.
  [[nodiscard]] std::uint64_t linked_steps() const { return linked_steps_; }
  // The sum of the gains of all exchanges that were neither cut nor distrusted, with neighbours of
  // more than twice this node's weight.
  [[nodiscard]] double taken() const { return taken_; }

 private:
  enum class Stage : std::uint8_t {
    resting,
    with_trainer,
    waiting,
    judge,
    look,
    speak,
    hand_back,
  };
  static constexpr int rest_heartbeats = 5;  // between two looks of a node with nothing to say
  struct Opening {
    NodeId peer{};
    Trigger::Decision decision;
    // While training the change of the whole model since it was last said there. At rest the
    // seconds since then: where models stand still, the largest change may be one that cannot help.
    double urgency = 0;
  };

  // Each does one step of its stage and returns how many floats that took.
  std::size_t judge(const RoundContext&, RoundOutcome&);
  void begin_update(const RoundContext&);
  std::size_t take_in(const RoundContext&, std::size_t count);
  std::size_t take_in_rest(const RoundContext&);
  std::size_t look(const RoundContext&);
  std::size_t speak(const RoundContext&, RoundOutcome&);
  std::size_t hand_back(const RoundContext&, RoundOutcome&);

  struct Piece {
    std::size_t blocks = 0, floats = 0;
  };
  // Of the `left` blocks, the i-th of which is block(i), those of a piece of work. At most one
  // without workers, or where a drift is followed, whose sums grow from block to block.
  template <typename BlockAhead>
  [[nodiscard]] Piece piece_of(std::size_t left, const RoundContext&, BlockAhead block) const;
  [[nodiscard]] Piece piece_at_cursor(const RoundContext&) const;  // in the schema's order
  [[nodiscard]] std::size_t floats_of_piece() const;

  [[nodiscard]] bool has_reason(const RoundContext&) const;
  void begin_round(const RoundContext&);
  void list_links(const RoundContext&);
  void next_link(const RoundContext&);
  void decide(RoundLink&, const RoundContext&);
  [[nodiscard]] Trigger::Decision decision_for(const RoundLink&, const RoundContext&);
  [[nodiscard]] bool pauses_among_training(const RoundLink&, const RoundContext&) const;
  [[nodiscard]] Duration usual_spacing() const;
  [[nodiscard]] Step steps_since_spoken(NodeId peer) const;
  [[nodiscard]] bool ends_apart(const RoundLink&, const RoundContext&) const;
  [[nodiscard]] bool peer_waits(const RoundLink&, const Directory&) const;
  [[nodiscard]] bool is_last_step(const std::map<NodeId, Step>& steps, NodeId peer) const {
    const auto found = steps.find(peer);
    return found != steps.end() && found->second == last_.step;
  }
  void forget_asked(const Directory&);
  void begin_turn(RoundLink&, const Trigger::Decision&, const RoundContext&);
  void end_turn(RoundLink&, const RoundContext&);
  [[nodiscard]] LossOf losses(const RoundContext&) const;
  [[nodiscard]] bool is_distrusted(const RoundContext&) const;  // at rest
  void note_taken(RoundLink&, const RoundContext&);
  void break_off(RoundOutcome&, const char* why);
  void take_back(RoundOutcome&, bool training);
  [[nodiscard]] Update update_of(std::vector<float> values, bool replace, bool training);
  [[nodiscard]] RoundLink* current(const RoundContext&) const;
  [[nodiscard]] bool has_room(const RoundLink&) const;
  [[nodiscard]] std::span<const float> drift(const RoundContext&) const;
  [[nodiscard]] OuterStep outer_step(const RoundLink&, const RoundContext&) const;
  [[nodiscard]] double final_threshold() const;
  [[nodiscard]] Step steps_between_looks() const;

  const ExchangePolicy& policy_;
  const Schema& schema_;
  Workers* const workers_;
  Stage stage_ = Stage::resting;
  ModelBuffers buffers_;
  OwnSteps own_steps_;
  Trigger trigger_;
  LookPace pace_;
  Snapshot last_;  // `model` is empty: it is in buffers_
  // What snapshots say in vain; 0: nothing.
  struct Instead {
    // The newest step time of one that had any: with a new batch it is not known until a step has
    // been made.
    double step_seconds = 0;
    // At rest, of the neighbour whose model this one has become (peer_trust.h).
    double loss = 0;
  } instead_;
  Instant snapshot_at_{};
  std::uint64_t linked_steps_ = 0;
  double taken_ = 0;
  bool trainer_runs_ = false;  // the last update told the trainer to make steps
  bool recalled_ = false;      // the buffer has been asked back since that update
  std::size_t cursor_ = 0;     // next block of the stage, or next float of hand_back
  std::size_t taken_in_ = 0;   // so many blocks of the update have begun …
  Step steps_taken_in_ = 0;    // … with so many own steps; 0: none are believed or known
  double share_carried_ = 0;   // of these, taken back
  // Peers on whose links this round does something, and which of them is at it.
  std::vector<NodeId> peers_;
  std::size_t at_ = 0;
  std::optional<Opening> opening_;  // the best so far in this round
  // Of links that are listed no more nothing is kept.
  struct ByLink {
    std::map<NodeId, Step> spoken;   // own step of the last turn
    std::map<NodeId, Step> told;     // own step of the last turn at rest …
    std::map<NodeId, Step> settled;  // … since when no answer has been awaited, at some time
    std::map<NodeId, Step> asked;    // the peer's last step, which a turn has asked it for
    BulkWindow window;
  } by_link_;
  // Why the own steps before this round are taken back while the round goes on without them.
  std::optional<std::string> taken_back_;
  double pushed_squared_ = 0;  // of the update, as far as it has been applied
  RestMove rest_;              // of this round, while the node is at rest
};

}  // namespace gossipd
