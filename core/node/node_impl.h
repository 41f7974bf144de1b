// core/node/node_impl.h - the state behind Node, in ten files by what they decide:
//
//     node.cpp      phases, the operator, persistence, the view
//     sessions.cpp  connections: handshake, messages, their end
//     overlay.cpp   who to talk to: which members to dial, rotation of links
//     detection.cpp who lives: silence, probes, suspicions
//     members.cpp   what members tell of each other
//     rounds.cpp    the exchange: one round per snapshot, block by block
//     guarding.cpp  whether the own steps are to be believed
//     joining.cpp   a model for a node that has none
//     budget.cpp    how many samples the cluster has trained on and is to train on
//     clones.cpp    two processes under one id
//     files.cpp     the file that belongs to the job
//     abuse.cpp     quarantine, and what is kept of peers at most
//
// Private to core/node. One owner, one thread, no clock of its own.
#pragma once

#include <deque>
#include <set>

#include "core/base/random.h"
#include "core/exchange/link.h"
#include "core/exchange/step_guard.h"
#include "core/exchange/trigger.h"
#include "core/membership/claims.h"
#include "core/membership/instances.h"
#include "core/node.h"
#include "core/node/control_allowance.h"
#include "core/node/dial_budget.h"
#include "core/node/durable_claims.h"
#include "core/node/failure_detector.h"
#include "core/node/final_model.h"
#include "core/node/job_transfer.h"
#include "core/node/model_assembly.h"
#include "core/node/path_watch.h"
#include "core/node/round_trip.h"
#include "core/wire/control.h"

namespace gossipd {

class NodeImpl {
 public:
  NodeImpl(NodeConfig config, NodeState state, Instant now);

  void on_job(std::string document, JobHash hash, Samples budget_samples, Instant now);
  void want_file(const JobFile& file, Instant now);
  void on_file_read(SessionId id, const JobFile& file, std::uint64_t offset, const Bytes& bytes);
  void on_waiting_for_data(std::string what, Instant now);
  void on_model_ready(Schema schema, RoundBuffers buffers, bool has_model, Samples own_samples,
                      Step step, Instant now);
  void on_snapshot(Snapshot snapshot, Instant now);
  void on_restored(std::vector<float> model, Instant now);
  void on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now);
  void on_dial_failed(const Endpoint& endpoint, std::string reason, Instant now);
  void on_session_closed(SessionId id, const std::string& reason, Instant now);
  void on_bytes(SessionId id, Instant now);
  void on_message(SessionId id, Lane lane, std::span<const std::byte> message, Instant now);
  void on_bulk_sent(SessionId id, std::size_t bytes, Instant now);
  std::optional<Error> join(std::vector<Endpoint> seeds, Instant now);
  std::optional<Error> leave(Instant now);
  std::optional<Error> forget(NodeId member, Instant now);
  std::optional<Error> pause(Instant now);
  std::optional<Error> resume(Instant now);
  std::optional<Error> extend_budget(Samples more, Instant now);
  void end_early(const std::string& why, Instant now);
  void stop(Instant now);
  void on_persisted(const NodeState& state, Instant now);
  void on_time(Instant now);
  [[nodiscard]] Instant next_deadline() const;
  [[nodiscard]] bool has_work() const;
  void work(Instant now);
  [[nodiscard]] std::vector<Effect> take_effects() { return std::exchange(effects_, {}); }
  [[nodiscard]] NodeView view(Instant now) const;
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] std::vector<std::uint64_t> hashes_of(NodeId peer, Link::Which which) const;
  void check_invariants() const;

 private:
  struct Session {
    SessionId id{};
    bool outbound = false;
    Endpoint remote;
    bool hello_due = false;      // ours waits for the disk …
    std::optional<Hello> early;  // … and so does theirs, which came meanwhile
    std::optional<Hello> theirs;
    std::uint32_t protocol = 0;  // that both speak, once `theirs` is accepted
    bool established = false;
    // is it alive? answers to the ping that is out say so; nothing else is heard
    bool doubted = false;
    std::optional<Ready> ready_mine, ready_theirs;
    std::uint64_t news_told = 0;
    std::uint64_t own_told = 0;  // own stats
    Directory::Sweep sweep;
    NodeId probed{};  // not to be linked: only a sign of life of this member is wanted
    RoundTrip round_trip;
    std::size_t bulk_outstanding = 0;
    ControlAllowance allowance;  // until it is established; then the neighbour's
  };
  struct Neighbour {
    std::unique_ptr<Link> link;
    SessionId session{};  // 0: down
    Instant down_since{};
    std::uint32_t refusals = 0;
    std::uint32_t quarantines = 0;
    Instant quarantined_until{};
    Step spoken_step = 0;  // own step of the last turn spoken
    ControlAllowance allowance;
    PathWatch path;
  };
  struct DialState {
    bool in_flight = false;
    Instant self_until{};  // it leads back to this node; asked again then
    NodeId probed{};       // who should answer there
    std::uint32_t failures = 0;
    Instant next{};
    std::string last_reason;
  };
  struct Opening {
    NodeId peer{};
    Trigger::Decision decision;
    double change = 0;  // of the whole model since it was last said there
  };
  enum class RoundStage : std::uint8_t { idle, waiting, judge, take_in, look, speak, hand_back };

  // node.cpp
  void emit(Effect effect) { effects_.push_back(std::move(effect)); }
  void log(Level level, std::string text) { emit(LogEffect{level, std::move(text)}); }
  void set_phase(Phase phase, const std::string& why);
  void persist();
  [[nodiscard]] bool may_say_hello() const;
  void raise_incarnation(std::uint64_t above);
  void renew_own_record(Instant now);
  void begin_training(Instant now);
  void check_finish(Instant now);
  void renew_final(bool agreed, Instant now);
  void write_final();
  [[nodiscard]] std::string why_no_final_model() const;
  void check_leave(Instant now);
  void finish_leave(Instant now);
  void say_left(Instant now);
  void reopen_waiting_links(Instant now);
  void note_refusal(bool by_us, std::string peer, Error reason, Instant now) {
    refusals_.note(by_us, std::move(peer), std::move(reason), now);
  }
  void name_bad_paths(Instant now);
  void recover_samples();
  [[nodiscard]] bool steps_allowed() const { return phase_ == Phase::training; }
  [[nodiscard]] bool exchanging() const;
  [[nodiscard]] Samples own_samples() const { return trained_samples_ + samples_extra_; }
  // The trainer's counter goes on where this node gave an id up.
  [[nodiscard]] Samples under_this_id(Samples trained) const {
    return trained - std::min(trained, state_.former_samples);
  }
  [[nodiscard]] double own_consensus_distance() const;
  [[nodiscard]] std::size_t open_links() const;

  // sessions.cpp
  void handle(Session& session, Control message, Instant now);
  void on_hello(Session& session, const Hello& hello, Instant now);
  [[nodiscard]] std::optional<Error> check_hello(const Hello& hello) const;
  [[nodiscard]] Error no_common_protocol(const Hello& hello) const;
  [[nodiscard]] ProtocolRange protocols() const {
    return {protocol_oldest, config_.membership.protocol};
  }
  void admit(Session& session, Instant now);
  void say_hello(Session& session);
  void say_due_hellos(Instant now);
  void establish(Session& session, Instant now);
  void ping(Session& session, Instant now);
  void note_left(const Hello& hello, Instant now);
  void on_probe_answered(Session& session, Instant now);
  void learn_from(const Hello& hello, Instant now);
  bool keep_existing(const Session& existing, const Session& fresh) const;
  void refuse(Session& session, Error reason, Instant now);
  void send(Session& session, const Control& message);
  void close(SessionId id, const std::string& reason, Instant now, bool tell_driver);
  void send_ready(Session& session, Instant now);
  void try_open(Session& session, Instant now);
  void dial(const Endpoint& endpoint, Instant now);
  [[nodiscard]] bool may_dial(const Endpoint& endpoint, Instant now) const;
  [[nodiscard]] std::size_t established_sessions() const;
  [[nodiscard]] Session* session_of(NodeId peer);
  [[nodiscard]] std::string who(const Session& session) const;
  void on_bulk(Session& session, std::span<const std::byte> message, Instant now);
  void quarantine(Session& session, const std::string& why, Instant now);
  void on_refused_data(Session& session, std::uint64_t refused, std::optional<Reject> whole,
                       Instant now);
  void flush_link(Neighbour& neighbour);

  // detection.cpp
  void note_attention(Instant now);
  void detect_failures(Instant now);
  void accuse(NodeId member, Instant last_heard, const std::string& why, Instant now);
  void accuse(const std::vector<FailureDetector::Silent>& members, const std::string& why,
              Instant now);
  void hand_on(const Suspicion& suspicion);
  void accuse_all_at(const Endpoint& address, NodeId but, const std::string& why, Instant now);
  void accuse_displaced(Instant now);
  void on_suspicions(const std::vector<Suspicion>& suspicions, Instant now);
  void refute(std::uint64_t incarnation, Instant now);
  void probe_one(Instant now);

  // clones.cpp
  void on_reflected(Session& session, Instant now);
  [[nodiscard]] bool is_alone(Session& session, Instant now);
  void on_proof_of_life(Session& session, Instant now);
  void on_cloned(Session& session, const Cloned& notice, Instant now);
  void on_cloned(const Cloned& notice, NodeId said_by, Instant now);
  void take_another_id(const Cloned& notice, Instant now);
  void look_at_former_addresses(const MemberRecord& before, const MemberRecord& claim, Instant now);

  // overlay.cpp
  void dial_if_needed(Instant now);
  void dial_failed_members(Instant now);
  void rotate_links(Instant now);
  void drop_rotated_link(const Session& fresh, Instant now);
  [[nodiscard]] std::size_t wanted_links() const;
  [[nodiscard]] std::vector<NodeId> unlinked(Instant now) const;

  // members.cpp
  void send_records(Session& session, std::vector<MemberRecord> records);
  void send_news(Session& session);
  void send_stats(Session& session, std::size_t most, Instant now);
  void tell_news();
  void gossip(Instant now);
  void on_members(Session& session, const Members& members, Instant now);
  void merge_records(const std::vector<MemberRecord>& records, Instant now, SessionId source = {});
  void merge_stats(const MemberStats& stats, Instant now, SessionId source = {});
  void credit_claims(Instant now);

  // budget.cpp
  [[nodiscard]] Samples others_estimate(Instant now) const;
  [[nodiscard]] Samples beyond_trainer(Instant now) const;
  [[nodiscard]] bool most_have_finished() const;
  void publish_progress(Instant now);
  void check_progress(Instant now);
  void set_budget(const Budget& budget, const std::string& why, Instant now);
  void hear_budget(const Budget& budget, const std::string& name, NodeId said_by, Instant now);

  // guarding.cpp
  [[nodiscard]] bool guards_steps() const;
  void measure_own_step(std::size_t block);
  [[nodiscard]] bool believe_own_step();
  [[nodiscard]] bool take_back_broken();
  void take_back(Jump jump);
  void rest_broken();

  [[nodiscard]] double loss_of(NodeId member) const;
  [[nodiscard]] bool is_trusted(NodeId peer) const;
  void rest_offenders(Instant now);

  // joining.cpp
  [[nodiscard]] bool needs_model() const {
    return model_ready_ && (!has_model_ || phase_ == Phase::broken);
  }
  [[nodiscard]] ModelAssembly::Links open_links_by_peer() const;
  void order_blocks(NodeId of, Ready& ready, Instant now) const;
  bool adopt(Instant now);
  void take_over(const std::string& from, Instant now);

  // files.cpp
  void ask_for_file(Instant now);
  void on_file_request(Session& session, const FileRequest& request);
  void on_file_piece(Session& session, std::span<const std::byte> message, Instant now);

  // abuse.cpp
  void on_flood(Session& session, const std::string& what, Instant now);
  [[nodiscard]] bool is_admitted(Session& session, const Control& message, std::size_t bytes,
                                 Instant now);
  void bound_conversations();
  void bound_dials(Instant now);

  // rounds.cpp
  void start_round(Instant now);
  [[nodiscard]] bool round_has_reason(Instant now) const;
  void zero_local_segments(std::vector<float>& values) const;
  void next_link(Instant now);
  [[nodiscard]] bool has_room(const Neighbour& neighbour) const;
  void balance();
  [[nodiscard]] BatchBalancer::Others others_that_train() const;
  [[nodiscard]] std::uint32_t job_batch() const {
    return last_.job_batch > 0 ? last_.job_batch : last_.batch;
  }
  void trigger_round(Instant now);
  void decide(Neighbour& neighbour, Instant now);
  void speak_on(Neighbour& neighbour, const Trigger::Decision& decision, Instant now);
  [[nodiscard]] Trigger::Decision decision_for(const Neighbour& neighbour, Instant now) const;
  void end_speech(Neighbour& neighbour, Instant now);
  [[nodiscard]] bool is_leaving(NodeId peer) const;
  [[nodiscard]] std::uint32_t in_flight(Instant now);
  [[nodiscard]] double finish_threshold() const;
  [[nodiscard]] Duration finish_pace() const;
  void finish_round();
  void recall_if_owing();
  [[nodiscard]] Step round_steps() const;
  void hand_out(std::vector<float> values, bool replace);
  void own_model_broken(const std::string& where);
  [[nodiscard]] double round_trip_periods(NodeId peer);
  [[nodiscard]] OuterStep outer_step(NodeId peer);
  [[nodiscard]] Speech speech_for(const Link& link, double periods,
                                  const Trigger::Decision& decision, Instant now);
  [[nodiscard]] float own_weight() const;
  [[nodiscard]] std::span<const float> drift() const;

  NodeConfig config_;
  NodeState state_;
  DurableClaims durable_;
  Random random_;
  std::vector<Effect> effects_;
  Phase phase_ = Phase::joining;
  bool paused_when_broken_ = false;
  std::string waiting_for_;
  Instant started_{};
  bool stopping_ = false;

  // job and model
  std::string job_document_;
  Samples budget_samples_ = 0;  // in force: the job's, or state_.budget's
  JobTransfer transfer_;
  Schema schema_;
  ModelAssembly assembly_;    // of a model, while this node has none
  bool model_ready_ = false;  // the trainer stands and the schema is known
  bool has_model_ = false;    // its parameters are the cluster's
  Instant grace_until_{};

  // progress
  Samples trained_samples_ = 0;   // the trainer's own counter
  Samples samples_extra_ = 0;     // what peers or the disk know beyond it
  Samples others_published_ = 0;  // last ProgressEffect
  Snapshot last_;                 // stats of the last snapshot, without the model
  std::uint64_t link_steps_ = 0;
  Step joined_at_step_ = 0;
  bool ramping_ = false;
  Instant finish_deadline_{};
  Instant finish_round_at_{};  // the final exchange's next round
  Instant leave_deadline_{};
  std::map<NodeId, std::uint64_t> leave_turns_;
  bool final_checkpoint_due_ = false;
  FinalModel final_;
  bool late_ = false;  // it came to the end of the job without a step of its own: its model may be
                       // older than the others'
  bool restore_asked_ = false;

  // membership
  Directory directory_;
  Claims claims_;
  double own_rate_ = 0;            // samples/s when this node last trained
  bool commanded_budget_ = false;  // the budget in force is an operator's, given here
  std::string overridden_;
  std::uint64_t instance_ = 0;    // of this process
  Instances instances_;           // of the others'
  std::set<NodeId> said_cloned_;  // members that say that this node is to give its id up
  std::string cloned_;
  std::map<SessionId, Session> sessions_;
  std::map<NodeId, Neighbour> neighbours_;
  std::map<Endpoint, DialState> dials_;
  DialBudget dial_budget_;
  FailureDetector detector_;
  Instant next_rotation_{};
  bool rotating_ = false;  // the next link that opens replaces one
  Instant next_tick_{};
  Instant next_failed_dial_{};
  Instant persist_after_{};
  bool persist_due_ = false;
  RefusalLog refusals_;

  // the round: one buffer is with the trainer or here
  RoundStage stage_ = RoundStage::idle;
  std::vector<float> base_;        // the model the trainer is about to have: last snapshot + update
  std::vector<float> incoming_;    // the snapshot; then, swapped, the update under construction
  std::vector<float> drift_;       // own displacement per step
  std::vector<double> travelled_;  // of each block, by own steps: the sum of the norms
  StepGuard guard_;
  std::unique_ptr<TransferGuard> transfer_guard_;
  OwnMove own_move_;               // since the last look, of the blocks measured so far
  std::vector<double> own_moved_;  // of each block: the norm
  double pushed_squared_ = 0;      // of the update that is being handed back
  std::uint32_t rests_ = 0;        // of a model that broke again and again
  Instant rest_until_{};           // no model is taken over before
  Trigger trigger_;
  BatchBalancer balancer_;
  bool base_valid_ = false;
  bool incoming_is_zero_ = false;
  bool trainer_has_buffer_ = false;
  bool trainer_running_ = false;  // what the last update told it
  Instant looked_at_{};           // the last round that was not prompt
  bool recalled_ = false;         // the buffer has been asked back since
  // this round only carries on exchanges that are under way; nothing is opened
  bool answers_only_ = false;
  Step look_step_ = 0;  // of the next round that is not
  Instant snapshot_at_{};
  Step base_step_ = 0;
  std::optional<Opening> opening_;  // the best so far, in this round
  bool consensus_is_new_ = false;   // a turn has been spoken since the trigger saw it
  std::uint64_t cursor_ = 0;        // floats or blocks, by stage
  std::vector<NodeId> round_links_;
  std::size_t round_link_ = 0;
};

}  // namespace gossipd
