// core/node.h - one node of the cluster: membership, links, exchange and progress, composed.
//
// Sans-IO: the driver (gossipd, the lab, the fault simulator) brings events and the time, then
// carries out the effects it takes, in order. The same code therefore runs over TCP, in virtual
// time and under injected faults. A driver's loop after every event:
//
//     for (Effect& e : node.take_effects()) carry_out(e);
//     while (node.has_work()) {
//       node.work(now);  // other events may come between two calls
//       for (Effect& e : node.take_effects()) carry_out(e);
//     }
//     // arm one timer for node.next_deadline(); when it is due: node.on_time(now)
//
// The driver never waits for the disk: it hands the newest PersistEffect's state to a writer of its
// own and goes on; when a state is on disk it says so by on_persisted(). Until then the node says
// nothing that a restart would contradict (core/node/durable_claims.h), so no effect has to wait
// for another.
//
// work() does one bounded piece (about a block) of encoding, mixing or hashing, so that a large
// model never keeps heartbeats waiting. Single owner, one thread (the protocol strand).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "core/balance/batch_balancer.h"
#include "core/base/protocol.h"
#include "core/base/result.h"
#include "core/base/workers.h"
#include "core/exchange/counters.h"
#include "core/exchange/policy.h"
#include "core/exchange/trainer_port.h"
#include "core/membership/division_members.h"
#include "core/membership/member.h"
#include "core/membership/policy.h"
#include "core/model/schema.h"
#include "core/node/refusals.h"

namespace gossipd {

// What must survive a restart. Written by the driver when a Persist effect says so.
struct NodeState {
  NodeId id{};
  ClusterId cluster{};            // 0: not yet a member of any
  std::uint64_t incarnation = 0;  // the highest that may have been used; the next start uses more
  bool left = false;              // by `leave`; stays until `join`
  bool paused = false;            // by `pause`; stays until `resume`, or the job's end
  std::string name;               // that the operator once gave; empty: none
  bool founder = false;           // of this cluster
  JobHash job{};                  // 0: none yet
  std::uint64_t generation = 1;   // of the job in this cluster (core/node/job_generation.h)
  ClusterId meeting_in{};         // the cluster's name while this job is trained; 0: `cluster`
  // The job before this one, whose model and history the disk still has in their place; hash 0:
  // none.
  JobHash former_job{};
  std::uint64_t former_generation = 0;
  Samples own_samples = 0;  // as last published; a restart never counts less
  Budget budget;            // if it is no longer the job's own
  // everybody else ever heard of, or as many as are kept: addresses to rejoin by, samples
  std::vector<MemberRecord> members;
  std::set<NodeId> met;           // of these, those with which a session was once established
  double samples_per_second = 0;  // of this node, when it last trained
  NodeId former_id{};             // given up, since another process holds it; 0: none
  Samples former_samples = 0;     // of the trainer's counter: trained under former ids
  Duration down_for{};            // read only: since this was written, by the wall clock
  // before it was written: what was trained in that time others may still have to tell
  Duration unsure_for{};
};
// On this job, as far as the node has heard, so the model is still the job's own.
[[nodiscard]] bool nobody_has_trained(const NodeState&);

struct NodeConfig {
  std::string name;
  Endpoint advertise;                  // where others reach this node
  bool advertise_by_operator = false;  // an operator named it
  std::string version;                 // of the program, for others to see
  // Beyond `advertise`: this address leads to this node as well, by what the driver listens on.
  std::function<bool(const Endpoint&)> leads_here{};
  // asked for ever while joining, at most seeds_max; empty: this node may found a cluster
  std::vector<Endpoint> seeds;
  // The node founds this cluster once every seed has said that it belongs to none
  // (core/node/founding.h); 0: it only joins.
  ClusterId founds{};
  std::uint64_t random_seed = 1;
  MembershipPolicy membership;
  ExchangePolicy exchange;
  BalancePolicy balance;
  // Take part in the work on blocks, and outlive the node; null: everything on the caller's thread.
  Workers* workers = nullptr;
};

// ---- effects ---------------------------------------------------------------------------------
// answered by on_session_open or on_dial_failed
struct DialEffect {
  Endpoint endpoint;
};
struct SendEffect {
  SessionId session;
  Lane lane;
  SharedBytes message;
};
// control messages already sent go out first; no event follows
struct CloseEffect {
  SessionId session;
  std::string reason;
};
// write it, then on_persisted(); a newer one replaces it
struct PersistEffect {
  NodeState state;
};
// from the cluster: prepare it, then on_model_ready(). It comes before the first PersistEffect that
// names the job, and is to be on disk before it.
struct JobEffect {
  std::string document;
  JobHash hash;
};
// The cluster goes on to this job: write its document, then the state that begins it, then
// on_next_job_kept(). No PersistEffect comes after it, unless it was not kept.
struct NextJobEffect {
  std::string document;
  JobHash hash;
  NodeState state;
};
// a peer asks: answer with on_file_read()
struct FileReadEffect {
  SessionId session;
  JobFile file;
  std::uint64_t offset;
  std::size_t bytes;
};
// of the wanted file, in order; the last one makes it whole
struct FilePieceEffect {
  JobFile file;
  std::uint64_t offset;
  Bytes bytes;
};
// to the trainer: the job now ends there
struct BudgetEffect {
  Samples samples;
  bool goes_on = false;  // after its end
};
struct UpdateEffect {
  Update update;
};  // to the trainer
// to the trainer, which has the buffer: the snapshot is wanted at the next step boundary
struct RequestSnapshotEffect {};
// to the trainer: what the rest has trained on
struct ProgressEffect {
  Samples others_samples;
};
struct CheckpointEffect {
  bool final_model;
};  // the trainer should write one now
// own model broken, no neighbour has one: answer with on_restored()
struct RestoreEffect {};
// after the states before: stop, keep the model, and start again from them
struct RestartEffect {};
enum class Level : std::uint8_t { debug, info, warning, error };
// a transition, once; `key=value` words
struct LogEffect {
  Level level;
  std::string text;
};
using Effect =
    std::variant<DialEffect, SendEffect, CloseEffect, PersistEffect, JobEffect, FileReadEffect,
                 FilePieceEffect, BudgetEffect, UpdateEffect, RequestSnapshotEffect, ProgressEffect,
                 CheckpointEffect, RestoreEffect, RestartEffect, NextJobEffect, LogEffect>;

// ---- what can be looked at -------------------------------------------------------------------
struct MemberView {
  MemberRecord record;
  bool self = false;
  bool linked = false;
  double rtt_ms = 0;    // 0: no link
  double age_s = 0;     // since its record last changed here
  bool cloned = false;  // another process has spoken under its id
  // Whether this node found it at its address, and it this node; nothing: not tried.
  std::optional<bool> answers_us, finds_us;
  std::string no_answer;  // why it did not
};

struct LinkView {
  NodeId peer{};
  SessionId session{};  // 0: down
  std::string name;
  Endpoint address;
  bool outbound = false;
  std::uint32_t protocol = 0;  // that both ends speak; 0: down
  std::string state;           // "handshake", "opening", "open", "suspect", "down"
  double rtt_ms = 0;
  // The other box's clock minus this one's, to half of `rtt_ms`; nothing: not told.
  std::optional<double> clock_ahead_s;
  double silence_s = 0;             // since the last byte
  double quarantine_s = 0;          // for so long no session is accepted; 0: none is barred
  bool large_packets_lost = false;  // small ones arrive there, large ones do not
  double age_steps = 0;             // of what the peer published, in the peer's steps
  double age_s = 0;
  ExchangeCounters counters;
};

struct IdentityView {
  NodeId id{};
  std::string name;
  ClusterId cluster{};
  std::uint64_t incarnation = 0;
  Phase phase = Phase::joining;
  bool isolated = false;  // members are known, none is linked
  Reachability reachability = Reachability::unknown;
  std::string not_reached;  // why, by one who tried; empty: nobody had to say
  JobHash job{};
  std::uint64_t generation = 1;  // of the job
  SchemaHash schema{};
};

struct SamplesView {
  Samples own_samples = 0;
  // What members remember of the counters of a trainer that outlives this process, under all ids.
  Samples remembered_samples = 0;
  Step remembered_step = 0;
  // As all have said: a lower bound, exact when nothing changes.
  Samples cluster_samples = 0;
  // With what has probably come since, of members whose word is old.
  Samples cluster_samples_estimate = 0;
  Samples budget_samples = 0;
  // Words: which command of an operator here is no longer in force, and why.
  std::string overridden;
};

struct TrainingView {
  Step step = 0;
  double loss = 0;
  double learning_rate = 0;
  double samples_per_second = 0;
  double step_seconds = 0;
  std::uint32_t batch = 0;
  double consensus_distance = 1;
  // Own steps with at least one link open: those in which an all-reduce would have taken place.
  std::uint64_t linked_steps = 0;
  std::string trouble;  // of the own steps, and the way out; empty: none
  // Looks at the own model that had jumped, so that it was set back.
  std::uint64_t steps_taken_back = 0;
};

struct MemberTotals {
  // Of members that are not forgotten, this node included; by raw(MemberState).
  std::array<std::uint32_t, raw(MemberState::forgotten)> members_by_state{};
  double cluster_samples_per_second = 0;  // of the members that are alive and train
  std::uint32_t forgotten = 0;            // members …
  Samples forgotten_samples = 0;          // … and what they trained on: part of cluster_samples
  std::uint64_t claims_refused = 0;       // of what members said of each other: what cannot be
  std::string cloned;                     // words: who else speaks, or spoke, under this node's id
};

// This node and totals over all members: what is asked for often, and copies no member's record.
struct NodeSummary : IdentityView, SamplesView, TrainingView, MemberTotals {
  std::uint32_t links_open = 0;
  std::vector<Refusal> refusals;  // newest last, at most refusals_max
  std::string waiting_for;        // words; empty: for nothing
};

struct NodeView : NodeSummary {
  std::vector<MemberView> members;  // but those forgotten
  std::vector<LinkView> links;
};

class Conductor;

class Node {
 public:
  // The node uses an incarnation above `state.incarnation`, and says nothing before on_persisted().
  Node(NodeConfig config, NodeState state, Instant now);
  ~Node();
  Node(Node&&) noexcept;
  Node& operator=(Node&&) noexcept;

  // ---- the job and the model ----
  // A job known from a file or from disk, before anything else; `document` is handed on to joiners.
  void on_job(std::string document, JobHash hash, Samples budget_samples, Instant now);
  // The job's file is not here: members are asked for it until it is whole (FilePieceEffect). Call
  // it again when the content turned out wrong.
  void want_file(const JobFile& file, Instant now);
  // In answer to FileReadEffect; no bytes: it is not here.
  void on_file_read(SessionId session, const JobFile& file, std::uint64_t offset,
                    const Bytes& bytes);
  // The data directory is missing (`what` says which); the node stays a member and waits.
  void on_waiting_for_data(std::string what, Instant now);
  // The trainer stands. `restored`: its parameters come from a checkpoint of this job (or founder's
  // initial ones), else they must come from a neighbour. Own counters as restored; `buffers`: as
  // make_round_buffers() makes them.
  void on_model_ready(Schema schema, RoundBuffers buffers, bool has_model, Samples own_samples,
                      Step step, Instant now);
  // Of a job whose steps another process makes: whether one is at work. While none is, the node is
  // a member that exchanges but makes no steps (`what` it waits for). May come before the model.
  void on_trainer(bool present, std::string what, Instant now);
  // The trainer answered the last UpdateEffect.
  void on_snapshot(Snapshot snapshot, Instant now);

  // The model of the last good checkpoint, in answer to RestoreEffect; empty: there is none.
  void on_restored(std::vector<float> model, Instant now);

  // ---- sessions ----
  // outbound: the endpoint that was dialled
  void on_session_open(SessionId session, bool outbound, Endpoint remote, Instant now);
  // `own_shortage`: it never left this machine, so it says nothing of who is there.
  void on_dial_failed(Endpoint endpoint, std::string reason, Instant now,
                      bool own_shortage = false);
  void on_session_closed(SessionId session, std::string reason, Instant now);
  void on_bytes(SessionId session, Instant now);  // any byte is a sign of life
  void on_message(SessionId session, Lane lane, std::span<const std::byte> message, Instant now);
  void on_bulk_sent(SessionId session, std::size_t bytes, Instant now);

  // ---- the operator ----
  [[nodiscard]] std::optional<Error> join(std::vector<Endpoint> seeds, Instant now);
  // The seeds from now on, in place of all before: at most seeds_max that may be dialled. Those
  // that lead to this node are left out.
  void set_seeds(const std::vector<Endpoint>& seeds, Instant now);
  [[nodiscard]] std::optional<Error> leave(Instant now);
  // A member that failed or left is no longer listed, nor dialled; its samples still count.
  // Spreads, and lasts until it comes back by itself.
  [[nodiscard]] std::optional<Error> forget(NodeId member, Instant now);
  [[nodiscard]] std::optional<Error> pause(Instant now);
  [[nodiscard]] std::optional<Error> resume(Instant now);
  // More samples for the whole cluster, beyond the budget or beyond what has been trained on
  // already; also when the job has ended.
  [[nodiscard]] std::optional<Error> extend_budget(Samples more, Instant now);
  // The next job of the whole cluster, which follows one that is finished. Why none may follow now,
  // or not this one.
  [[nodiscard]] std::optional<Error> why_no_next_job(std::optional<JobHash> next = {}) const;
  [[nodiscard]] std::optional<Error> start_job(std::string document, JobHash hash, Instant now);
  // The answer to a NextJobEffect with this state: the disk has it, or does not.
  void on_next_job_kept(const NodeState& state, bool kept, Instant now);
  // The whole cluster stops where it is: the budget becomes what it has trained on.
  void end_early(const std::string& why, Instant now);
  // For others to see: what it computes on, and its last accuracy on held-out data.
  void describe(std::string device, std::optional<double> accuracy, Instant now);
  void stop(Instant now);  // SIGTERM: says goodbye as `restarting`; nothing durable changes

  // ---- the disk ----
  // This state, of a PersistEffect, would survive a power cut from now on. In the order of the
  // effects; those that a newer one replaced are left out. After a failed write there is no call:
  // the next effect comes within seconds.
  void on_persisted(const NodeState& state, Instant now);

  // ---- time and work ----
  // What the box's clock shows at `now`, in ms since 1970. It is only told to neighbours and
  // compared with theirs, for people. To be said again now and then, since a clock can be set.
  void set_clock(std::uint64_t clock_ms, Instant now);
  void on_time(Instant now);
  [[nodiscard]] Instant next_deadline() const;
  [[nodiscard]] bool has_work() const;
  void work(Instant now);
  [[nodiscard]] std::vector<Effect> take_effects();

  // What can be looked at, in slices: with many members a list of them is what costs.
  [[nodiscard]] NodeSummary summary(Instant now) const;
  [[nodiscard]] std::vector<MemberView> members(Instant now) const;  // but those forgotten
  [[nodiscard]] std::vector<LinkView> links(Instant now) const;
  [[nodiscard]] NodeView view(Instant now) const;  // all three
  // Among whom a set that all nodes hold is divided (core/membership/division_members.h).
  [[nodiscard]] std::vector<DivisionMember> who_divides() const;
  [[nodiscard]] Phase phase() const;
  [[nodiscard]] ClusterId cluster() const;  // 0: none yet
  // For tests and the simulator: a link's replicas as both ends know them, a hash for each block
  // (0: it is to go whole), and everything that must always hold.
  [[nodiscard]] std::vector<std::uint64_t> published_to(NodeId peer) const;
  [[nodiscard]] std::vector<std::uint64_t> received_from(NodeId peer) const;
  void check_invariants() const;

 private:
  std::unique_ptr<Conductor> impl_;
};

}  // namespace gossipd
