// Phases, the operator, persistence, and the view.
#include <algorithm>
#include <cmath>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr Duration poll_period = std::chrono::milliseconds(100);
// so that nothing else depends on this draw
constexpr std::uint64_t instance_salt = 0x696e7374616e6365;

NodeState begin_life(NodeState state) {
  state.incarnation = std::min(state.incarnation, counter_max - 2) + 1;
  return state;
}

}  // namespace

NodeImpl::NodeImpl(NodeConfig config, NodeState state, Instant now)
    : config_(std::move(config)),
      state_(begin_life(std::move(state))),
      random_(config_.random_seed ^ raw(state_.id)),
      life_(state_.left),
      source_(schema_),
      directory_(state_.id, config_.membership.known_max),
      claims_({.self = state_.id,
               .speed_ratio_max = config_.membership.speed_ratio_max,
               .down_for = state_.down_for,
               .unsure_for = state_.unsure_for,
               .newcomer = state_.own_samples == 0 && state_.samples_per_second == 0,
               .now = now},
              state_.budget.revision),
      clones_(state_.id,
              make_instance(state_.incarnation, Random(config_.random_seed ^ instance_salt).next()),
              state_.former_id),
      dialer_(config_.membership, config_.advertise, config_.seeds),
      progress_({.own = state_.own_samples,
                 .former = state_.former_samples,
                 .rate = state_.samples_per_second,
                 .budget = state_.budget}),
      detector_(config_.membership, now),
      persistence_(now, state_.down_for, state_.unsure_for),
      round_(config_.exchange, schema_),
      balancer_(config_.balance) {
  GOSSIPD_ASSERT(state_.id != NodeId{});
  if (config_.name.size() > name_bytes_max) config_.name.resize(name_bytes_max);
  life_.wait_for(dialer_.seeds().empty() ? "a job" : "a seed to answer");
  renew_own_record(now);
  for (const MemberRecord& record : std::exchange(state_.members, {}))
    (void)directory_.merge(record, now);
  credit_claims(now);
  persist();
}

bool NodeImpl::set_phase(Phase to, const std::string& why) {
  const Phase from = phase();
  if (!life_.enter(to)) return false;
  log(Level::info, std::string("event=phase from=") + to_string(from) + " to=" + to_string(to) +
                       " why=\"" + why + "\"");
  return true;
}

void NodeImpl::persist() {
  state_.own_samples = progress_.own();
  state_.budget = progress_.budget();
  state_.samples_per_second = progress_.rate();
  NodeState state = persistence_.to_write(state_, directory_, detector_.looked_at());
  state.incarnation = durable_.to_reserve(state_.incarnation);
  emit(PersistEffect{std::move(state)});
}

bool NodeImpl::may_say_hello() const {
  return durable_.allows(state_.incarnation) && durable_.left() == (life_.is(Phase::left));
}

void NodeImpl::on_persisted(const NodeState& state, Instant now) {
  if (state.id != state_.id) return;  // the process that starts after this one has another id
  const bool could = may_say_hello();
  durable_.on_disk(state);
  if (life_.is_stopping()) return;
  if (life_.is(Phase::leaving) && state_.left && durable_.left()) say_left(now);
  if (const auto above = durable_.take_awaited()) refute(*above, now);
  if (could || !may_say_hello()) return;
  say_due_hellos(now);
  dial_if_needed(now);
}

void NodeImpl::raise_incarnation(std::uint64_t above) {
  state_.incarnation = std::min(std::max(state_.incarnation, above), counter_max - 2) + 1;
  log(Level::info, "event=refute incarnation=" + std::to_string(state_.incarnation));
  persist();
}

void NodeImpl::renew_own_record(Instant now) {
  MemberRecord record;
  const auto* known = directory_.find(state_.id);
  record.id = state_.id;
  record.name = config_.name;
  record.address = config_.advertise;
  record.incarnation = std::max(state_.incarnation, known ? known->record.incarnation : 0);
  record.state = life_.is(Phase::left) ? MemberState::left : MemberState::alive;
  record.phase = phase();
  record.samples = std::max(progress_.own(), known ? known->record.samples : 0);
  record.step = round_.last().step;
  if (round_.last().step_seconds > 0 && round_.last().batch > 0) {
    // a node that restarts without a rate can judge nobody's claims
    if (progress_.rate() == 0) persistence_.request();
    progress_.note_rate(round_.last().batch / round_.last().step_seconds);
  }
  // At the end of a job the last rate stays in the record: whoever restarts then has no other to
  // judge claims by.
  const bool ended = life_.is_at_end();
  record.samples_per_second =
      ended || (steps_allowed() && round_.last().step_seconds > 0) ? progress_.rate() : 0;
  record.batch = round_.last().batch;
  record.loss = round_.last().loss;
  record.consensus_distance = own_consensus_distance();
  record.budget = progress_.budget();
  if (known == nullptr) return directory_.set_self(std::move(record), true, now);
  const MemberRecord& said = known->record;
  const double bound = config_.exchange.consensus_bound;
  const bool is_news = record.incarnation != said.incarnation || record.state != said.state ||
                       record.phase != said.phase || record.name != said.name ||
                       record.address != said.address || record.budget != said.budget ||
                       (record.consensus_distance < bound) != (said.consensus_distance < bound) ||
                       // at rest a count is final: all are to know it
                       (!steps_allowed() && record.samples != said.samples);
  const bool changed =
      is_news || record.samples != said.samples || record.step != said.step ||
      record.batch != said.batch || record.samples_per_second != said.samples_per_second ||
      record.loss != said.loss || record.consensus_distance != said.consensus_distance;
  if (changed) directory_.set_self(std::move(record), is_news, now);
}

std::size_t NodeImpl::open_links() const { return count_open(round_links()); }

double NodeImpl::own_consensus_distance() const {
  return consensus_distance(round_links(), directory_.alive_others());
}

// ---- the job and the model -------------------------------------------------------------------

void NodeImpl::on_job(std::string document, JobHash hash, Samples budget_samples, Instant now) {
  GOSSIPD_ASSERT(document.size() <= job_bytes_max);
  job_document_ = std::move(document);
  progress_.on_job(budget_samples);
  const bool fresh = state_.job != hash;
  state_.job = hash;
  if (fresh) persist();
  if (life_.is(Phase::joining))
    life_.wait_for(dialer_.seeds().empty() ? "the model" : "a seed to answer");
  (void)now;
}

void NodeImpl::on_waiting_for_data(std::string what, Instant now) {
  life_.wait_for(std::move(what));
  set_phase(Phase::waiting_for_data, life_.waiting_for());
  renew_own_record(now);
}

void NodeImpl::on_model_ready(Schema schema, RoundBuffers buffers, bool has_model,
                              Samples own_samples, Step step, Instant now) {
  GOSSIPD_ASSERT(!source_.trainer_stands());
  schema_ = std::move(schema);
  round_.prepare(std::move(buffers), step);
  transfer_guard_ =
      std::make_unique<TransferGuard>(config_.exchange.transfer_reach, schema_.blocks().size());
  source_.on_trainer_ready(has_model || !config_.exchange.enabled);
  progress_.on_trainer_ready(own_samples, std::max(state_.own_samples, directory_.self().samples));
  life_.look_until(now + config_.membership.isolation_grace);
  const std::vector<SessionId> established = peers_.established_ids();
  for (const SessionId id : established) send_ready(*peers_.find(id), now);
  for (const SessionId id : established)
    if (Session* session = peers_.find(id)) try_open(*session, now);
  publish_progress(now);
  if (progress_.budget().revision > 0) emit(BudgetEffect{progress_.in_force()});
  if (life_.is(Phase::left)) return;
  if (source_.is_missing()) {
    set_phase(peers_.established() > 0 ? Phase::syncing : Phase::joining,
              "the model comes from a neighbour");
    return;
  }
  // A node that restarts with its cluster's model looks for the others first, but not for ever.
  const bool alone = dialer_.seeds().empty() && directory_.entries().size() == 1;
  if (alone || peers_.established() > 0)
    begin_training(now);
  else
    set_phase(Phase::joining, "looking for the cluster's other members");
}

void NodeImpl::begin_training(Instant now) {
  GOSSIPD_ASSERT(source_.has_model());
  claims_.end_trust();
  weight_.join(round_.last().step, directory_.entries().size() <= 1);
  set_phase(Phase::training, peers_.established() > 0 ? "linked to the cluster" : "alone");
  check_progress(now);
  if (round_.is_resting())
    hand_out(round_.begin(steps_allowed()));
  else
    begin_round_if_due(now);
}

// The models are one when every member that is not dead or gone has finished stepping and says that
// its consensus distance is below the bound.
std::string NodeImpl::why_no_final_model() const {
  if (!config_.exchange.enabled) return "";
  const double bound = config_.exchange.consensus_bound;
  if (open_links() == 0 && directory_.alive_others() > 0) return "no other member is linked";
  if (own_consensus_distance() >= bound)
    return "a neighbour's model is " + std::to_string(own_consensus_distance()) + " away";
  for (const auto& [id, entry] : directory_.entries()) {
    if (id == state_.id) continue;
    if (std::string why = why_not_final(entry, bound); !why.empty()) return why;
  }
  return "";
}

void NodeImpl::check_finish(Instant now) {
  const bool stale = life_.is(Phase::finished) && final_.is_stale(config_.exchange.consensus_bound);
  if (!life_.is(Phase::finishing) && !stale) return;
  const std::string why_not = why_no_final_model();
  if (stale) return renew_final(why_not.empty(), now);
  if (!why_not.empty() && !life_.is_overdue(now)) return;
  if (!why_not.empty())
    log(Level::warning,
        "event=final-apart why=\"" + why_not +
            "\" hint=\"the exchange goes on; `final` is written again once the models are one\"");
  set_phase(Phase::finished,
            why_not.empty() ? "the models agree" : "time for the final exchange is up");
  weight_.agree();
  final_.want();
  renew_own_record(now);
  gossip(now);
  persistence_.request();
  if (round_.is_waiting()) write_final();
}

// The model has moved on, mostly because somebody has come back with another one.
void NodeImpl::renew_final(bool agreed, Instant now) {
  const std::string moved = std::to_string(final_.moved_since_written());
  if (agreed) {
    final_.want();
    log(Level::info, "event=final-renewed moved=" + moved);
    if (round_.is_waiting()) return write_final();
    return final_.forget_moves();  // it is written at the next snapshot
  }
  life_.finish_by(now + config_.membership.finish_cap);
  round_.next_final_look(now);
  set_phase(Phase::finishing,
            "the model has moved by " + moved + " of its norm since `final` was written");
  renew_own_record(now);
  gossip(now);
}

void NodeImpl::write_final() {
  final_.written();
  emit(CheckpointEffect{true});
}

// ---- the operator ----------------------------------------------------------------------------

std::optional<Error> NodeImpl::join(std::vector<Endpoint> seeds, Instant now) {
  if (life_.is_stopping() || life_.is(Phase::leaving))
    return Error{"busy", "this node is leaving or stopping; try again when it has"};
  if (!life_.is(Phase::left) && seeds.empty())
    return Error{"already-member", "this node has not left; name a seed to ask it as well"};
  if (auto refused = dialer_.add_seeds(seeds)) return refused;
  dialer_.forgive(now);
  if (life_.is(Phase::left)) {
    state_.left = false;
    raise_incarnation(state_.incarnation);
    set_phase(Phase::joining, "by the operator");
    life_.wait_for("a member to answer");
    life_.look_until(now + config_.membership.isolation_grace);
    renew_own_record(now);
    if (source_.has_model() && directory_.alive_others() == 0 && dialer_.seeds().empty())
      begin_training(now);
  }
  // A named seed is asked at once, also by a node that has neighbours: the operator wants to know
  // what it says.
  for (const Endpoint& seed : seeds)
    if (may_dial(seed, now)) dial(seed, NodeId{}, now);
  dial_if_needed(now);
  return std::nullopt;
}

std::optional<Error> NodeImpl::leave(Instant now) {
  if (life_.is_going())
    return Error{"already-left", "this node has left already; `gossipctl join` brings it back"};
  set_phase(Phase::leaving, "by the operator");
  std::map<NodeId, std::uint64_t> spoken;
  if (source_.has_model())
    for (const auto& [id, link] : open_links_by_peer()) spoken[id] = link->counters().turns_spoken;
  life_.leave_by(now + config_.membership.leave_flush, std::move(spoken));
  renew_own_record(now);
  begin_round_if_due(now);
  check_leave(now);
  return std::nullopt;
}

// Done when every link has had one more exchange and the words are out, or when time is up.
void NodeImpl::check_leave(Instant now) {
  if (!life_.is(Phase::leaving) || state_.left) return;  // the second: it waits for the disk
  const ModelAssembly::Links links = open_links_by_peer();
  const bool said = life_.has_said_all([&](NodeId peer, std::uint64_t turns) {
    const auto link = links.find(peer);
    const Session* session = peers_.session_of(peer);
    return link == links.end() || session == nullptr ||
           (link->second->counters().turns_spoken > turns && !link->second->awaits_answer() &&
            session->bulk_outstanding == 0);
  });
  if (said || life_.is_overdue(now)) finish_leave(now);
}

// Leaving is a promise over restarts, so it holds when the disk knows it.
void NodeImpl::finish_leave(Instant now) {
  state_.left = true;
  persist();
  if (durable_.left()) say_left(now);
}

void NodeImpl::say_left(Instant now) {
  set_phase(Phase::left, "by the operator");
  renew_own_record(now);
  gossip(now);
  close_all("left", "this node leaves the cluster", now);
}

std::optional<Error> NodeImpl::pause(Instant now) {
  if (life_.is(Phase::paused)) return std::nullopt;
  if (!life_.is_training())
    return Error{"not-training",
                 std::string("nothing to pause: this node is ") + to_string(phase())};
  set_phase(Phase::paused, "by the operator");
  renew_own_record(now);
  return std::nullopt;
}

std::optional<Error> NodeImpl::resume(Instant now) {
  if (life_.is_training()) return std::nullopt;
  if (!life_.is(Phase::paused))
    return Error{"not-paused",
                 std::string("nothing to resume: this node is ") + to_string(phase())};
  set_phase(Phase::training, "by the operator");
  renew_own_record(now);
  begin_round_if_due(now);
  return std::nullopt;
}

void NodeImpl::stop(Instant now) {
  if (life_.is_stopping()) return;
  life_.stop();
  renew_own_record(now);
  gossip(now);
  persist();
  close_all("restarting", "this node restarts", now);
}

// ---- time ------------------------------------------------------------------------------------

Instant NodeImpl::next_deadline() const {
  const Instant poll = detector_.looked_at() + poll_period;
  const bool next_look = life_.is(Phase::finishing) && round_.is_waiting() &&
                         round_.final_look() > detector_.looked_at();
  return next_look ? std::min(poll, round_.final_look()) : poll;
}

void NodeImpl::on_time(Instant now) {
  const MembershipPolicy& policy = config_.membership;
  note_attention(now);
  if (life_.is_stopping()) return;
  detect_failures(now);
  ask_for_file(now);
  if (now >= next_tick_) {
    next_tick_ = now + policy.tick;
    renew_own_record(now);
    credit_claims(now);
    publish_progress(now);
    if (persistence_.is_due(now)) persist();
    if (!life_.is(Phase::left)) accuse_displaced(now);
    gossip(now);
    name_bad_paths(now);
  } else {
    tell_news();
  }
  for (auto& [id, session] : peers_.sessions())
    if (session.established() && session.round_trip.due(now)) ping(session, now);
  dial_if_needed(now);
  if (!life_.is_going()) {
    probe_one(now);
    rotate_links(now);
  }
  if (life_.is(Phase::joining) && source_.has_model() && life_.has_looked(now) && !state_.left) {
    log(Level::warning,
        "event=isolated hint=\"no known member answers; training goes on alone and they are asked "
        "for ever\"");
    begin_training(now);
  }
  if (life_.is(Phase::broken) && round_.is_resting() && !adopt(now)) {
    reopen_waiting_links(now);
    if (source_.wants_checkpoint(open_links(), now)) emit(RestoreEffect{});
  }
  check_progress(now);
  // Say at once, not at the next tick, that the models agree.
  if (life_.is(Phase::finishing) && own_consensus_distance() < config_.exchange.consensus_bound &&
      directory_.self().consensus_distance >= config_.exchange.consensus_bound) {
    renew_own_record(now);
    gossip(now);
  }
  check_finish(now);
  check_leave(now);
  begin_round_if_due(now);
}

// A broken node speaks no turn, so a link that waits for one brings no model: opened again, the
// other end speaks first.
void NodeImpl::reopen_waiting_links(Instant now) {
  std::vector<SessionId> waiting;
  for (const auto& [id, neighbour] : peers_.neighbours())
    if (neighbour.link && neighbour.link->my_turn() && !neighbour.link->received_complete())
      waiting.push_back(neighbour.session);
  for (const SessionId id : waiting)
    close(id, "a model is needed; opening the link again", now, true);
}

// ---- looking at it ---------------------------------------------------------------------------

std::vector<std::uint64_t> NodeImpl::hashes_of(NodeId peer, Link::Which which) const {
  std::vector<std::uint64_t> hashes;
  const Neighbour* neighbour = peers_.neighbour(peer);
  if (neighbour == nullptr || !neighbour->link || !neighbour->link->has_replicas()) return hashes;
  for (std::size_t block = 0; block < schema_.blocks().size(); ++block)
    hashes.push_back(
        neighbour->link->is_known(which, block) ? neighbour->link->hash_of(which, block) : 0);
  return hashes;
}

NodeView NodeImpl::view(Instant now) const {
  NodeView view;
  view.id = state_.id;
  view.name = config_.name;
  view.cluster = state_.cluster;
  view.incarnation = state_.incarnation;
  view.phase = phase();
  view.isolated = directory_.entries().size() > 1 && peers_.established() == 0;
  view.job = state_.job;
  view.schema = source_.trainer_stands() ? schema_.hash() : SchemaHash{};
  view.own_samples = progress_.own();
  view.cluster_samples = progress_.own() + directory_.others_samples();
  view.cluster_samples_estimate = progress_.own() + others_estimate(now);
  view.budget_samples = progress_.in_force();
  view.step = round_.last().step;
  view.loss = round_.last().loss;
  view.learning_rate = round_.last().learning_rate;
  view.step_seconds = round_.last().step_seconds;
  view.samples_per_second = steps_allowed() ? directory_.self().samples_per_second : 0;
  view.batch = round_.last().batch;
  view.consensus_distance = own_consensus_distance();
  view.link_steps = round_.link_steps();
  view.claims_refused = claims_.refused();
  view.overridden = progress_.overridden();
  view.cloned = clones_.words();
  view.steps_taken_back = round_.own_steps().guard().jumps();
  view.waiting_for =
      life_.is(Phase::joining) || life_.is(Phase::waiting_for_data) ? life_.waiting_for() : "";
  if (life_.is_at_end())
    if (const std::string why = why_no_final_model(); !why.empty())
      view.waiting_for = "one model everywhere; " + why;
  const bool waits_for_disk =
      life_.is(Phase::joining) ? !may_say_hello() : life_.is(Phase::leaving) && state_.left;
  if (waits_for_disk) view.waiting_for = "the disk to take this node's state";
  if (const auto transfer = transfer_.progress(); transfer && life_.is(Phase::preparing))
    view.waiting_for = "the job's file, " + std::to_string(transfer->bytes) + " of " +
                       std::to_string(transfer->file.bytes) + " bytes have come";
  view.refusals.assign(refusals_.latest().begin(), refusals_.latest().end());
  std::map<NodeId, double> rtt_ms;
  for (const auto& [id, session] : peers_.sessions())
    if (session.established())
      rtt_ms[session.theirs->id] = session.round_trip.smoothed_seconds() * 1e3;
  for (const auto& [id, entry] : directory_.entries()) {
    if (entry.record.state == MemberState::forgotten) {
      ++view.forgotten;
      view.forgotten_samples += entry.record.samples;
      continue;
    }
    MemberView member;
    member.record = entry.record;
    if (entry.suspect && member.record.state == MemberState::alive)
      member.record.state = MemberState::suspect;
    member.self = id == state_.id;
    member.cloned = clones_.is_cloned(id);
    member.age_s = std::max(0.0, seconds(now - entry.refreshed));
    if (const auto linked = rtt_ms.find(id); linked != rtt_ms.end())
      member.linked = true, member.rtt_ms = linked->second;
    view.members.push_back(std::move(member));
  }
  for (const auto& [id, neighbour] : peers_.neighbours()) {
    const Session* session = peers_.find(neighbour.session);
    const Link* link = neighbour.link.get();
    const auto* entry = directory_.find(id);
    LinkView item;
    item.peer = id;
    item.large_packets_lost = neighbour.path.swallows_large();
    if (entry != nullptr) item.name = entry->record.name, item.address = entry->record.address;
    item.state = session == nullptr                   ? "down"
                 : entry != nullptr && entry->suspect ? "suspect"
                 : link && link->is_open()            ? "open"
                                                      : "opening";
    if (session != nullptr) {
      item.outbound = session->outbound;
      item.protocol = session->protocol;
      item.rtt_ms = session->round_trip.smoothed_seconds() * 1e3;
      item.silence_s = std::max(0.0, seconds(now - detector_.last_heard(session->id)));
    }
    if (link != nullptr) {
      item.counters = link->counters();
      item.age_s = link->age_seconds(now);
      if (link->peer_step_seconds() > 0) item.age_steps = item.age_s / link->peer_step_seconds();
    }
    view.links.push_back(std::move(item));
  }
  return view;
}

void NodeImpl::check_invariants() const {
  peers_.check_invariants();
  dialer_.check_invariants();
  GOSSIPD_ASSERT(directory_.self().incarnation == state_.incarnation || life_.is(Phase::left));
  GOSSIPD_ASSERT(peers_.established() == 0 || durable_.allows(state_.incarnation));
  GOSSIPD_ASSERT(refusals_.latest().size() <= refusals_max &&
                 directory_.entries().size() <= members_max);
  detector_.check_invariants();
}

// ---- the face --------------------------------------------------------------------------------

Node::Node(NodeConfig config, NodeState state, Instant now)
    : impl_(std::make_unique<NodeImpl>(std::move(config), std::move(state), now)) {}
Node::~Node() = default;
Node::Node(Node&&) noexcept = default;
Node& Node::operator=(Node&&) noexcept = default;

void Node::on_job(std::string document, JobHash hash, Samples budget, Instant now) {
  impl_->on_job(std::move(document), hash, budget, now);
}
void Node::want_file(const JobFile& file, Instant now) { impl_->want_file(file, now); }
void Node::on_file_read(SessionId id, const JobFile& file, std::uint64_t offset,
                        const Bytes& bytes) {
  impl_->on_file_read(id, file, offset, bytes);
}
std::optional<Error> Node::extend_budget(Samples more, Instant now) {
  return impl_->extend_budget(more, now);
}
void Node::end_early(const std::string& why, Instant now) { impl_->end_early(why, now); }
void Node::on_waiting_for_data(std::string what, Instant now) {
  impl_->on_waiting_for_data(std::move(what), now);
}
void Node::on_model_ready(Schema schema, RoundBuffers buffers, bool has_model, Samples own_samples,
                          Step step, Instant now) {
  impl_->on_model_ready(std::move(schema), std::move(buffers), has_model, own_samples, step, now);
}
void Node::on_snapshot(Snapshot snapshot, Instant now) {
  impl_->on_snapshot(std::move(snapshot), now);
}
void Node::on_restored(std::vector<float> model, Instant now) {
  impl_->on_restored(std::move(model), now);
}
void Node::on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now) {
  impl_->on_session_open(id, outbound, std::move(remote), now);
}
void Node::on_dial_failed(Endpoint endpoint, std::string reason, Instant now) {
  impl_->on_dial_failed(endpoint, std::move(reason), now);
}
void Node::on_session_closed(SessionId id, std::string reason, Instant now) {
  impl_->on_session_closed(id, reason, now);
}
void Node::on_bytes(SessionId id, Instant now) { impl_->on_bytes(id, now); }
void Node::on_message(SessionId id, Lane lane, std::span<const std::byte> message, Instant now) {
  impl_->on_message(id, lane, message, now);
}
void Node::on_bulk_sent(SessionId id, std::size_t bytes, Instant now) {
  impl_->on_bulk_sent(id, bytes, now);
}
std::optional<Error> Node::join(std::vector<Endpoint> seeds, Instant now) {
  return impl_->join(std::move(seeds), now);
}
std::optional<Error> Node::leave(Instant now) { return impl_->leave(now); }
std::optional<Error> Node::forget(NodeId member, Instant now) { return impl_->forget(member, now); }
std::optional<Error> Node::pause(Instant now) { return impl_->pause(now); }
std::optional<Error> Node::resume(Instant now) { return impl_->resume(now); }
void Node::stop(Instant now) { impl_->stop(now); }
void Node::on_persisted(const NodeState& state, Instant now) { impl_->on_persisted(state, now); }
void Node::on_time(Instant now) { impl_->on_time(now); }
Instant Node::next_deadline() const { return impl_->next_deadline(); }
bool Node::has_work() const { return impl_->has_work(); }
void Node::work(Instant now) { impl_->work(now); }
std::vector<Effect> Node::take_effects() { return impl_->take_effects(); }
NodeView Node::view(Instant now) const { return impl_->view(now); }
Phase Node::phase() const { return impl_->phase(); }
std::vector<std::uint64_t> Node::published_to(NodeId peer) const {
  return impl_->hashes_of(peer, Link::Which::published);
}
std::vector<std::uint64_t> Node::received_from(NodeId peer) const {
  return impl_->hashes_of(peer, Link::Which::received);
}
void Node::check_invariants() const { impl_->check_invariants(); }

}  // namespace gossipd
