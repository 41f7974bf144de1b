// core/node/conductor.h - passes every event to the components that it concerns, and turns what
// they answer into effects.
//
// The problem: an event mostly concerns several components (a snapshot: the round, the samples, the
// budget, the final model), and each of them is easier to read and to test if it knows no other.
//
// The answer: the components own their state, each behind a header of its own; they take what they
// need as arguments and return what is to be done. The conductor is the only one that knows them
// all, and the only one that emits effects. Its code lies in files by event:
//
//     conductor.cpp   the start, time, and settle(), which follows every event
//     phases.cpp      phases, the operator's commands, the final model
//     own_record.cpp  what this node says of itself, to peers and to its disk
//     handshake.cpp   from a peer's hello to an open link
//     sessions.cpp    connections: their messages and their end
//     overlay.cpp     which members to dial, rotation of links
//     detection.cpp   silence, probes, suspicions
//     clones.cpp      two processes under one id
//     members.cpp     what members tell of each other
//     abuse.cpp       quarantine, and the allowances of peers
//     files.cpp       the file that belongs to the job
//     joining.cpp     the job, and a model for a node that has none
//     next_job.cpp    from one job of the cluster to the next
//     rounds.cpp      what a round of the exchange needs, and what is done with its outcome
//     budget.cpp      samples trained on, and the budget
//     view.cpp        what can be looked at
//
// Private to core/node. One owner, one thread, no clock of its own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/exchange/link.h"
#include "core/membership/claims.h"
#include "core/node.h"
#include "core/node/clone_watch.h"
#include "core/node/dialer.h"
#include "core/node/durable_claims.h"
#include "core/node/exchange_round.h"
#include "core/node/failure_detector.h"
#include "core/node/final_model.h"
#include "core/node/job_transfer.h"
#include "core/node/lifecycle.h"
#include "core/node/model_source.h"
#include "core/node/model_weight.h"
#include "core/node/next_job.h"
#include "core/node/peers.h"
#include "core/node/persistence.h"
#include "core/node/progress.h"
#include "core/node/timers.h"
#include "core/wire/control.h"

namespace gossipd {

class Conductor {
 public:
  Conductor(NodeConfig config, NodeState state, Instant now);

  void on_job(std::string document, JobHash hash, Samples budget_samples);
  void want_file(const JobFile& file, Instant now);
  void on_file_read(SessionId id, const JobFile& file, std::uint64_t offset, const Bytes& bytes);
  void on_waiting_for_data(std::string what);
  void on_model_ready(Schema schema, RoundBuffers buffers, bool has_model, Samples own_samples,
                      Step step, Instant now);
  void on_trainer(bool present, std::string what);
  void on_snapshot(Snapshot snapshot, Instant now);
  void on_restored(std::vector<float> model, Instant now);
  void on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now);
  void on_dial_failed(const Endpoint& endpoint, std::string reason, bool own_shortage, Instant now);
  void on_session_closed(SessionId id, const std::string& reason, Instant now);
  void on_bytes(SessionId id, Instant now);
  void on_message(SessionId id, Lane lane, std::span<const std::byte> message, Instant now);
  void on_bulk_sent(SessionId id, std::size_t bytes, Instant now);
  std::optional<Error> join(std::vector<Endpoint> seeds, Instant now);
  void set_seeds(const std::vector<Endpoint>& seeds, Instant now);
  void set_clock(std::uint64_t clock_ms, Instant now) { peers_.clock() = {clock_ms, now}; }
  std::optional<Error> leave(Instant now);
  std::optional<Error> forget(NodeId member, Instant now);
  std::optional<Error> pause();
  std::optional<Error> resume();
  std::optional<Error> extend_budget(Samples more);
  std::optional<Error> why_no_next_job(std::optional<JobHash> next) const;
  std::optional<Error> start_job(std::string document, JobHash hash, Instant now);
  void on_next_job_kept(JobHash hash, std::uint64_t generation, bool kept, Instant now);
  void end_early(const std::string& why);
  void describe(std::string device, std::optional<double> accuracy, Instant now);
  void stop(Instant now);
  void on_persisted(const NodeState& state, Instant now);
  void on_time(Instant now);
  // To be called after each of these events.
  void settle(Instant now);
  [[nodiscard]] Instant next_deadline() const;
  [[nodiscard]] bool has_work() const;
  void work(Instant now);
  [[nodiscard]] std::vector<Effect> take_effects() { return std::exchange(effects_, {}); }
  [[nodiscard]] NodeSummary summary(Instant now) const;
  [[nodiscard]] std::vector<MemberView> members(Instant now) const;
  [[nodiscard]] std::vector<LinkView> links(Instant now) const;
  [[nodiscard]] std::vector<DivisionMember> who_divides() const;
  [[nodiscard]] Phase phase() const { return life_.phase(); }
  [[nodiscard]] ClusterId cluster() const { return state_.cluster; }
  [[nodiscard]] std::vector<std::uint64_t> hashes_of(NodeId peer, Link::Which which) const;
  void check_invariants() const;

 private:
  using Session = Peers::Session;
  using Neighbour = Peers::Neighbour;

  void emit(Effect effect) { effects_.push_back(std::move(effect)); }
  void log(Level level, std::string text) { emit(LogEffect{level, std::move(text)}); }
  void note_refusal(bool by_us, std::string peer, Error reason, Instant now) {
    refusals_.note(by_us, std::move(peer), std::move(reason), now);
  }

  // conductor.cpp
  void speak_early(Instant now);
  void on_tick(Instant now);

  // phases.cpp
  // True: it is another one now.
  bool set_phase(Phase to, const std::string& why);
  [[nodiscard]] bool steps_allowed() const { return life_.is_training(); }
  void begin_training(Instant now);
  void enter_training(const std::string& why, Instant now);
  void check_finish(Instant now);
  void renew_final(bool agreed, Instant now);
  void write_final();
  [[nodiscard]] std::string why_no_final_model() const;
  void check_leave(Instant now);
  void finish_leave(Instant now);
  void say_left(Instant now);

  // own_record.cpp
  void persist();
  [[nodiscard]] bool may_say_hello() const;
  // The cluster as hellos name it.
  [[nodiscard]] ClusterId met_as() const { return DurableClaims::met_as(state_); }
  void raise_incarnation(std::uint64_t above);
  // Peers are to know at once, not at the next tick.
  [[nodiscard]] bool has_news_of_itself() const;
  void renew_own_record(Instant now);
  [[nodiscard]] MemberRecord own_record() const;
  [[nodiscard]] double own_consensus_distance() const;
  [[nodiscard]] std::size_t open_links() const;

  // sessions.cpp
  void handle(Session& session, Control message, Instant now);
  void handle_established(Session& session, const Control& message, Instant now);
  void on_refused(Session& session, const Error& reason, Instant now);
  void on_job_offer(Session& session, const JobOffer& offer, Instant now);
  void on_bye(Session& session, const Bye& bye, Instant now);
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
  void drop_life_beyond_refuting(const Hello& hello);
  void learn_from(const Hello& hello, Instant now);
  bool keep_existing(const Session& existing, const Session& fresh) const;
  void refuse(Session& session, Error reason, Instant now);
  void send(Session& session, const Control& message);
  void send_bulk(Session& session, SharedBytes message);
  void close(SessionId id, const std::string& reason, Instant now, bool tell_driver);
  void close_all(const char* bye, const std::string& reason, Instant now);
  void send_ready(Session& session, Instant now);
  void try_open(Session& session, Instant now);
  void dial(const Endpoint& endpoint, NodeId probed, Instant now);
  [[nodiscard]] bool may_dial(const Endpoint& endpoint, Instant now) const;
  [[nodiscard]] std::string who(const Session& session) const;
  void on_bulk(Session& session, std::span<const std::byte> message, Instant now);
  void quarantine(Session& session, const std::string& why, Instant now);
  void on_refused_data(Session& session, std::uint64_t refused, std::optional<Reject> whole,
                       Instant now);
  void flush_link(Neighbour& neighbour);

  // detection.cpp
  void note_attention(Instant now);
  void detect_failures(Instant now);
  void accuse(NodeId member, Instant last_heard, const std::string& why);
  void accuse(const std::vector<FailureDetector::Silent>& members, const std::string& why);
  void hand_on(const Suspicion& suspicion);
  void accuse_all_at(const Endpoint& address, NodeId but, const std::string& why, Instant now);
  void accuse_displaced(Instant now);
  void on_suspicions(const std::vector<Suspicion>& suspicions, Instant now);
  void refute(std::uint64_t incarnation, Instant now);
  void probe_one(Instant now);
  void name_bad_paths(Instant now);

  // clones.cpp
  void on_reflected(Session& session, Instant now);
  [[nodiscard]] Session* rival_of(const Hello& hello);
  [[nodiscard]] Endpoint address_of_rival(const Hello& hello);
  [[nodiscard]] bool is_alone(Session& session, Instant now);
  void on_proof_of_life(Session& session, Instant now);
  void void_lonely_verdicts(Instant now);
  void on_cloned(Session& session, const Cloned& notice, Instant now);
  void on_cloned(const Cloned& notice, NodeId said_by, Instant now);
  void take_another_id(const Cloned& notice, Instant now);
  void look_at_former_addresses(const MemberRecord& before, const MemberRecord& claim, Instant now);

  // reach.cpp
  void note_found(const Endpoint& address, NodeId found, const std::string& why);
  void dial_back(Instant now);
  void on_reached(const Session& session, const Reached& told);

  // next_job.cpp
  [[nodiscard]] std::optional<Error> why_no_job() const;
  [[nodiscard]] std::optional<Error> why_not_during_change() const;
  [[nodiscard]] JobGeneration own_job() const;
  [[nodiscard]] std::optional<Error> check_generation(const Hello& hello) const;
  void on_other_generation(Session& session, const Error& error, Instant now);
  void on_succession(Session& session, const Succession& told, Instant now);
  [[nodiscard]] NodeState state_for(const JobGeneration& next, Instant now) const;
  void go_on_to(const JobGeneration& next, std::string document, Instant now);
  void check_next_job(Instant now);

  // overlay.cpp
  void look_after_overlay(Instant now);
  void dial_if_needed(Instant now);
  void dial_failed_member(Instant now);
  void dial_lost_member(Instant now);
  void rotate_links(Instant now);
  void dial_next_in_circle(Instant now);
  void end_rotation(Instant now);
  bool admits_beyond_its_links(const Session& fresh, Instant now);
  void shed_link(Instant now);
  void give_up_link(SessionId id, Instant now);
  [[nodiscard]] bool may_go(const Session& session) const;
  [[nodiscard]] bool may_end(const Session& session) const;
  [[nodiscard]] std::size_t wanted_links() const;
  [[nodiscard]] std::uint32_t links_told() const;
  [[nodiscard]] std::vector<NodeId> unlinked(MemberState state, Instant now) const;
  [[nodiscard]] std::vector<NodeId> take_met_before(std::vector<NodeId>& ids) const;

  // members.cpp
  void send_records(Session& session, std::vector<MemberRecord> records);
  void send_news(Session& session);
  void send_stats(Session& session, std::size_t most, Instant now);
  void tell_news(Instant now);
  void gossip(Instant now);
  void on_members(Session& session, const Members& members, Instant now);
  void merge_records(const std::vector<MemberRecord>& records, Instant now, SessionId source = {});
  void merge_stats(const MemberStats& stats, Instant now, SessionId source = {});
  void believe_most_neighbours();
  void credit_claims(Instant now);
  void recover_samples();

  // budget.cpp
  [[nodiscard]] Samples others_estimate(Instant now) const;
  [[nodiscard]] bool most_have_finished() const;
  void settle_samples(Instant now);
  // Before it has met its cluster, what it has heard of members may be of a job before.
  [[nodiscard]] bool may_know_another_job() const {
    return state_.cluster == ClusterId{} && job_.named_by != ClusterId{};
  }
  void publish_progress(Instant now);
  void check_progress(Instant now);
  void set_budget(const Budget& budget, const std::string& why);
  void hear_budget(const Budget& budget, const std::string& name, NodeId said_by, Instant now);

  // joining.cpp
  [[nodiscard]] bool needs_model() const {
    return source_.is_missing() || (source_.is_broken() && !life_.is_going());
  }
  [[nodiscard]] ModelAssembly::Links open_links_by_peer() const;
  [[nodiscard]] bool has_hardly_begun() const;
  void order_blocks(NodeId of, Ready& ready, Instant now) const;
  [[nodiscard]] Samples known_own_samples(Samples counter);
  bool adopt(Instant now);
  [[nodiscard]] bool is_adopting() const;
  void found_if_due(Instant now);
  void take_over(const std::string& from, Instant now);
  void seek_model(Instant now);
  void reopen_waiting_links(Instant now);

  // files.cpp
  void ask_for_file(Instant now);
  void on_file_request(Session& session, const FileRequest& request);
  void on_file_piece(Session& session, std::span<const std::byte> message, Instant now);

  // abuse.cpp
  void close_stalled_links(Instant now);
  void on_resync(Session& session, const Resync& resync, Instant now);
  void on_flood(Session& session, const std::string& what, Instant now);
  [[nodiscard]] bool is_admitted(Session& session, const Control& message, std::size_t bytes,
                                 Instant now);

  // rounds.cpp
  [[nodiscard]] std::vector<RoundLink> round_links() const;
  [[nodiscard]] RoundContext round_context(std::span<RoundLink> links, Instant now);
  void begin_round_if_due(Instant now);
  void on_round(RoundOutcome outcome, Instant now);
  void hand_out(Update update);
  void recall_if_owing();
  void log_taken_back(const std::string& what);
  void own_model_broken(const std::string& where, Instant now);
  void rest_offenders(const std::vector<NodeId>& peers, Instant now);
  void balance();
  void note_rate();
  [[nodiscard]] BatchBalancer::Others others_that_train() const;
  [[nodiscard]] std::uint32_t job_batch() const {
    return round_.last().job_batch > 0 ? round_.last().job_batch : round_.last().batch;
  }
  [[nodiscard]] float own_weight() const;

  // view.cpp
  [[nodiscard]] IdentityView identity_view() const;
  [[nodiscard]] SamplesView samples_view(Instant now) const;
  [[nodiscard]] TrainingView training_view() const;
  [[nodiscard]] MemberTotals member_totals() const;
  // Words; empty: for nothing.
  [[nodiscard]] std::string waiting_for() const;
  [[nodiscard]] std::string why_no_model() const;

  NodeConfig config_;
  NodeState state_;  // what must survive, but the members: those are in directory_
  DurableClaims durable_;
  Random random_;
  std::vector<Effect> effects_;
  Lifecycle life_;

  // the job and the model
  JobInForce job_;
  JobTransfer transfer_;
  Schema schema_;  // empty until the trainer stands
  ModelSource source_;
  FinalModel final_;
  Progress progress_;

  // the cluster
  Directory directory_;
  Claims claims_;
  CloneWatch clones_;
  Peers peers_;
  Dialer dialer_;
  FailureDetector detector_;
  RefusalLog refusals_;
  Persistence persistence_;
  Timers timers_;

  // the exchange
  ExchangeRound round_;
  std::unique_ptr<TransferGuard> transfer_guard_;  // of all links; null until the trainer stands
  BatchBalancer balancer_;
  ModelWeight weight_;
};

}  // namespace gossipd
