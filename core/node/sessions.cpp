// Who to talk to: dialling, the handshake, gossip of member records, failure detection.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr Duration link_memory = std::chrono::seconds(60);   // replicas of a lost neighbour are kept so long
constexpr Duration failed_dial_period = std::chrono::seconds(10);
constexpr Duration quarantine_min = std::chrono::seconds(10);
constexpr std::uint32_t quarantine_doublings_max = 6;
constexpr std::size_t sessions_max = 256;
constexpr int gossip_hops = 4;  // ticks a record may need to get here through others

}  // namespace

// ---- dialling --------------------------------------------------------------------------------

bool NodeImpl::may_dial(const Endpoint& endpoint, Instant now) const {
  if (endpoint.host.empty() || endpoint.port == 0) return false;
  const auto found = dials_.find(endpoint);
  return found == dials_.end() || (!found->second.in_flight && !found->second.self && now >= found->second.next);
}

void NodeImpl::dial(const Endpoint& endpoint, Instant now) {
  DialState& state = dials_[endpoint];
  state.in_flight = true;
  const MembershipPolicy& policy = config_.membership;
  const Duration backoff = std::min(policy.redial_max, policy.redial_min * (1u << std::min(state.failures, 10u)));
  state.next = now + from_seconds(seconds(backoff) * (0.75 + 0.5 * random_.uniform()));
  emit(DialEffect{endpoint});
}

void NodeImpl::dial_if_needed(Instant now) {
  if (phase_ == Phase::left || phase_ == Phase::leaving || stopping_) return;
  const std::size_t sessions = established_sessions();
  if (sessions == 0)
    for (const Endpoint& seed : config_.seeds)
      if (may_dial(seed, now)) dial(seed, now);

  std::vector<Endpoint> candidates, failed;
  std::size_t dialling = 0;
  for (const auto& [endpoint, state] : dials_) dialling += state.in_flight ? 1 : 0;
  for (const auto& [id, entry] : directory_.entries()) {
    if (id == state_.id || entry.record.state == MemberState::left) continue;
    const auto neighbour = neighbours_.find(id);
    if (neighbour != neighbours_.end() && (neighbour->second.session != SessionId{} || now < neighbour->second.quarantined_until)) continue;
    // A node that came back with another id answers at the old one's address.
    const bool taken = std::any_of(sessions_.begin(), sessions_.end(), [&entry = entry](const auto& item) {
      return item.second.established && item.second.theirs->address == entry.record.address;
    });
    if (taken || !may_dial(entry.record.address, now)) continue;
    (entry.record.state == MemberState::alive ? candidates : failed).push_back(entry.record.address);
  }
  const std::size_t wanted = std::min<std::size_t>(config_.membership.links, directory_.alive_others());
  while (sessions + dialling < wanted && !candidates.empty()) {
    const std::size_t pick = random_.below(candidates.size());
    dial(candidates[pick], now);
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(pick));
    ++dialling;
  }
  // Members that failed are asked again for ever, one at a time: a partition heals by itself.
  if (!failed.empty() && now >= next_failed_dial_) {
    dial(failed[random_.below(failed.size())], now);
    next_failed_dial_ = now + from_seconds(seconds(failed_dial_period) * (0.5 + random_.uniform()));
  }
}

void NodeImpl::on_dial_failed(const Endpoint& endpoint, std::string reason, Instant now) {
  DialState& state = dials_[endpoint];
  state.in_flight = false;
  ++state.failures;
  if (state.last_reason == reason) return;
  state.last_reason = reason;
  log(Level::warning, "event=dial-failed endpoint=" + to_string(endpoint) + " reason=\"" + reason + "\"");
  note_refusal(false, to_string(endpoint), Error{"dial-failed", std::move(reason)}, now);
}

// ---- sessions --------------------------------------------------------------------------------

std::size_t NodeImpl::established_sessions() const {
  return static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& item) { return item.second.established; }));
}

NodeImpl::Session* NodeImpl::session_of(NodeId peer) {
  const auto neighbour = neighbours_.find(peer);
  if (neighbour == neighbours_.end()) return nullptr;
  const auto session = sessions_.find(neighbour->second.session);
  return session == sessions_.end() ? nullptr : &session->second;
}

std::string NodeImpl::who(const Session& session) const {
  return session.theirs ? session.theirs->name + " (" + to_hex(session.theirs->id) + ")" : to_string(session.remote);
}

void NodeImpl::send(Session& session, const Control& message) {
  emit(SendEffect{session.id, Lane::control, std::make_shared<const Bytes>(encode_control(message))});
}

void NodeImpl::on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now) {
  if (outbound) dials_[remote].in_flight = false;
  if (stopping_ || sessions_.size() >= sessions_max || (phase_ == Phase::left && outbound)) {
    emit(CloseEffect{id, "not accepting sessions"});
    return;
  }
  Session& session = sessions_[id];
  session.id = id;
  session.outbound = outbound;
  session.remote = std::move(remote);
  session.opened = session.last_byte = now;
  send(session, Hello{protocol_version, state_.cluster, state_.id, state_.incarnation, config_.name, config_.advertise, state_.job,
                      phase_ == Phase::left});
}

void NodeImpl::close(SessionId id, const std::string& reason, Instant now, bool tell_driver) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const Session session = std::move(found->second);
  sessions_.erase(found);
  if (tell_driver) emit(CloseEffect{id, reason});
  if (session.outbound && !session.established) ++dials_[session.remote].failures;
  if (!session.theirs) return;
  const auto neighbour = neighbours_.find(session.theirs->id);
  if (neighbour == neighbours_.end() || neighbour->second.session != id) return;
  neighbour->second.session = SessionId{};
  neighbour->second.down_since = now;
  if (neighbour->second.link) neighbour->second.link->close();
  log(Level::info, "event=link-down peer=" + to_hex(session.theirs->id) + " reason=\"" + reason + "\"");
}

void NodeImpl::on_session_closed(SessionId id, const std::string& reason, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const bool was_established = found->second.established;
  const NodeId peer = found->second.theirs ? found->second.theirs->id : NodeId{};
  if (!was_established)
    note_refusal(false, who(found->second), Error{"closed", "closed before the handshake was done: " + reason}, now);
  close(id, reason, now, false);
  if (was_established && directory_.set_suspect(peer, true))
    log(Level::info, "event=member-suspect peer=" + to_hex(peer) + " reason=\"" + reason + "\"");
  check_finish(now);
  dial_if_needed(now);
}

void NodeImpl::on_bytes(SessionId id, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second.last_byte = now;
  if (found->second.established) directory_.heard_from(found->second.theirs->id, now);
}

void NodeImpl::on_bulk_sent(SessionId id, std::size_t bytes) {
  const auto found = sessions_.find(id);
  if (found != sessions_.end()) found->second.bulk_outstanding -= std::min(bytes, found->second.bulk_outstanding);
}

void NodeImpl::on_message(SessionId id, Lane lane, std::span<const std::byte> message, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  on_bytes(id, now);
  if (lane == Lane::bulk) return on_bulk(found->second, message, now);
  Result<Control> control = decode_control(message);
  if (!control) return refuse(found->second, control.error(), now);
  handle(found->second, std::move(*control), now);
}

void NodeImpl::handle(Session& session, Control message, Instant now) {
  if (auto* hello = std::get_if<Hello>(&message)) return on_hello(session, *hello, now);
  if (auto* refusal = std::get_if<Refuse>(&message)) {
    if (refusal->reason.code != "duplicate" && refusal->reason.code != "self") {
      log(Level::warning, "event=refused-by peer=" + who(session) + " code=" + refusal->reason.code + " reason=\"" + refusal->reason.text + "\"");
      note_refusal(false, who(session), refusal->reason, now);
    }
    if (session.outbound && refusal->reason.code != "duplicate") dials_[session.remote].failures = std::max(4u, dials_[session.remote].failures + 1);
    return close(session.id, "refused by the peer: " + refusal->reason.code, now, true);
  }
  if (auto* members = std::get_if<Members>(&message)) {
    // Also from a node that has no room for another link: that is how a joiner finds the others.
    if (session.established || (session.theirs && (session.theirs->cluster == state_.cluster || state_.cluster == ClusterId{}))) merge_records(members->records, now);
    return;
  }
  if (!session.established) return refuse(session, Error{"handshake", "a message came before the handshake was done"}, now);
  if (std::get_if<JobRequest>(&message)) {
    if (!job_document_.empty()) send(session, JobOffer{state_.job, budget_samples_, job_document_});
  } else if (auto* offer = std::get_if<JobOffer>(&message)) {
    if (state_.job != JobHash{}) return;
    if (JobHash{XXH3_64bits(offer->document.data(), offer->document.size())} != offer->hash)
      return refuse(session, Error{"job-corrupt", "the job's text does not have the hash it was offered with"}, now);
    state_.job = offer->hash;
    job_document_ = offer->document;
    budget_samples_ = offer->budget_samples;
    persist();
    set_phase(Phase::preparing, "the job has arrived from " + who(session));
    emit(JobEffect{job_document_, state_.job});
  } else if (auto* ready = std::get_if<Ready>(&message)) {
    session.ready_theirs = *ready;
    try_open(session, now);
  } else if (auto* ping = std::get_if<Ping>(&message)) {
    send(session, Pong{ping->nonce});
  } else if (auto* pong = std::get_if<Pong>(&message)) {
    if (pong->nonce != session.ping_nonce || pong->nonce == 0) return;
    const double sample = seconds(now - session.ping_sent);
    session.rtt_seconds = session.rtt_seconds == 0 ? sample : session.rtt_seconds + 0.25 * (sample - session.rtt_seconds);
    session.ping_nonce = 0;
  } else if (auto* resync = std::get_if<Resync>(&message)) {
    if (Neighbour& neighbour = neighbours_[session.theirs->id]; neighbour.link) neighbour.link->on_resync(*resync);
  } else if (auto* bye = std::get_if<Bye>(&message)) {
    const NodeId peer = session.theirs->id;
    log(Level::info, "event=bye peer=" + to_hex(peer) + " why=" + bye->why);
    close(session.id, "the peer says goodbye: " + bye->why, now, true);
    directory_.set_suspect(peer, true);
    check_finish(now);
  }
}

// ---- handshake -------------------------------------------------------------------------------

std::optional<Error> NodeImpl::check_hello(const Hello& hello) const {
  if (hello.id == state_.id) return Error{"self", "this is the same node"};
  if (hello.protocol != protocol_version)
    return Error{"protocol-mismatch", "protocol " + std::to_string(hello.protocol) + " meets protocol " + std::to_string(protocol_version) +
                                          "; run the same gossipd release on both"};
  if (phase_ == Phase::left || phase_ == Phase::leaving || hello.leaving)
    return Error{"left", std::string(hello.leaving ? "the peer" : "this node") + " has left the cluster; `gossipctl join` brings it back"};
  if (hello.cluster == ClusterId{} && state_.cluster == ClusterId{})
    return Error{"both-joining", "neither node belongs to a cluster yet; start one with --job and without --join"};
  if (hello.cluster != ClusterId{} && state_.cluster != ClusterId{} && hello.cluster != state_.cluster)
    return Error{"cluster-mismatch", "cluster " + to_hex(hello.cluster) + " meets cluster " + to_hex(state_.cluster) +
                                         "; clusters never merge: point --join at the right one or use another state directory"};
  if (hello.job != JobHash{} && state_.job != JobHash{} && hello.job != state_.job)
    return Error{"job-mismatch", "job " + to_hex(hello.job) + " meets job " + to_hex(state_.job) +
                                     "; start without --job to take the cluster's, or found a cluster of your own"};
  return std::nullopt;
}

void NodeImpl::on_hello(Session& session, const Hello& hello, Instant now) {
  if (session.theirs) return refuse(session, Error{"handshake", "a second hello"}, now);
  session.theirs = hello;
  if (session.theirs->address.host.empty()) session.theirs->address.host = session.remote.host;
  if (const auto error = check_hello(hello)) {
    if (error->code == "self" && session.outbound) dials_[session.remote].self = true;
    return refuse(session, *error, now);
  }
  const auto neighbour = neighbours_.find(hello.id);
  if (neighbour != neighbours_.end() && now < neighbour->second.quarantined_until)
    return refuse(session, Error{"quarantined", "too many of this peer's deltas had to be refused; it is let in again in " +
                                                    std::to_string(static_cast<int>(seconds(neighbour->second.quarantined_until - now)) + 1) + " s"}, now);
  if (Session* existing = session_of(hello.id); existing != nullptr) {
    if (keep_existing(*existing, session)) return refuse(session, Error{"duplicate", "there is a session already"}, now);
    close(existing->id, "replaced by a newer session", now, true);
  } else if (established_sessions() >= config_.membership.links_max) {
    send_members(session);
    return refuse(session, Error{"full", "this node has all the links it accepts; ask the members it named"}, now);
  }
  establish(session, now);
}

// Both ends must keep the same one of two sessions: the one that the lower id dialled; of two in one
// direction, or after a restart, the newer.
bool NodeImpl::keep_existing(const Session& existing, const Session& fresh) const {
  if (existing.theirs->incarnation != fresh.theirs->incarnation) return existing.theirs->incarnation > fresh.theirs->incarnation;
  if (existing.outbound == fresh.outbound) return false;
  const bool lower_is_self = raw(state_.id) < raw(fresh.theirs->id);
  return existing.outbound == lower_is_self;
}

void NodeImpl::establish(Session& session, Instant now) {
  const Hello& hello = *session.theirs;
  if (state_.cluster == ClusterId{}) {
    state_.cluster = hello.cluster;
    log(Level::info, "event=cluster-joined cluster=" + to_hex(state_.cluster));
  }
  session.established = true;
  session.ping_next = now;
  if (session.outbound) {
    dials_[session.remote].failures = 0;
    dials_[session.remote].last_reason.clear();
  }
  MemberRecord record;
  record.id = hello.id;
  record.name = hello.name;
  record.address = session.theirs->address;
  record.incarnation = hello.incarnation;
  if (const auto* known = directory_.find(hello.id); known == nullptr || known->record.incarnation < hello.incarnation) {
    if (known != nullptr) record.samples = known->record.samples;
    merge_records({record}, now);
  }
  directory_.heard_from(hello.id, now);
  Neighbour& neighbour = neighbours_[hello.id];
  neighbour.session = session.id;
  log(Level::info, "event=link-up peer=" + to_hex(hello.id) + " name=" + hello.name + " direction=" + (session.outbound ? "out" : "in"));
  persist();
  send_members(session);
  if (state_.job == JobHash{} && hello.job != JobHash{}) send(session, JobRequest{});
  if (model_ready_) {
    if (phase_ == Phase::joining && has_model_) begin_training(now);
    send_ready(session);
  }
}

void NodeImpl::refuse(Session& session, Error reason, Instant now) {
  const bool quiet = reason.code == "duplicate" || reason.code == "self" || reason.code == "full";
  log(quiet ? Level::debug : Level::warning, "event=refuse peer=" + who(session) + " code=" + reason.code + " reason=\"" + reason.text + "\"");
  if (!quiet) note_refusal(true, who(session), reason, now);
  if (session.outbound && reason.code != "duplicate") dials_[session.remote].failures = std::max(4u, dials_[session.remote].failures + 1);
  send(session, Refuse{reason});
  close(session.id, "refused: " + reason.code, now, true);
}

void NodeImpl::send_ready(Session& session) {
  if (session.ready_mine || !config_.exchange.enabled) return;
  Neighbour& neighbour = neighbours_[session.theirs->id];
  if (!neighbour.link) neighbour.link = std::make_unique<Link>(state_.id, session.theirs->id, schema_, config_.exchange);
  Ready ready;
  ready.schema = schema_.hash();
  ready.has_model = has_model_ && phase_ != Phase::broken;
  ready.nonce = random_.next();
  neighbour.link->describe(ready);
  session.ready_mine = ready;
  send(session, ready);
}

void NodeImpl::try_open(Session& session, Instant now) {
  if (!session.ready_mine || !session.ready_theirs) return;
  Neighbour& neighbour = neighbours_[session.theirs->id];
  if (!neighbour.link || neighbour.link->is_open()) return;
  if (session.ready_mine->schema != session.ready_theirs->schema)
    return refuse(session, Error{"schema-mismatch", "schema " + to_hex(session.ready_theirs->schema) + " meets schema " + to_hex(schema_.hash()) +
                                                        "; the two models differ in a shape or a name"}, now);
  if (!session.ready_mine->has_model && !session.ready_theirs->has_model) return;
  if (neighbour.link->open(*session.ready_mine, *session.ready_theirs, now)) {
    auto state = std::make_shared<const Bytes>(encode_replica_state(neighbour.link->replica_state()));
    session.bulk_outstanding += state->size();
    emit(SendEffect{session.id, Lane::bulk, std::move(state)});
  }
  if (round_has_reason(now)) start_round(now);
}

// ---- gossip of records -----------------------------------------------------------------------

void NodeImpl::send_members(Session& session) {
  while (true) {
    Members members{directory_.changed_since(session.members_seen)};
    if (members.records.empty()) return;
    send(session, members);
  }
}

void NodeImpl::gossip(Instant) {
  for (auto& [id, session] : sessions_)
    if (session.established) send_members(session);
}

void NodeImpl::merge_records(const std::vector<MemberRecord>& records, Instant now) {
  bool changed_membership = false;
  for (const MemberRecord& record : records) {
    const Directory::Outcome outcome = directory_.merge(record, now);
    const std::string words = " peer=" + to_hex(record.id) + " name=" + record.name + " address=" + to_string(record.address);
    switch (outcome) {
      case Directory::Outcome::joined: log(Level::info, "event=member-joined" + words); changed_membership = true; break;
      case Directory::Outcome::revived: log(Level::info, "event=member-back" + words); changed_membership = true; break;
      case Directory::Outcome::failed: log(Level::warning, "event=member-failed" + words + " by=gossip"); changed_membership = true; break;
      case Directory::Outcome::left: log(Level::info, "event=member-left" + words); changed_membership = true; break;
      case Directory::Outcome::accused: raise_incarnation(record.incarnation); renew_own_record(now); gossip(now); break;
      case Directory::Outcome::recovered:
        samples_extra_ = directory_.self().samples - std::min(directory_.self().samples, trained_samples_);
        log(Level::info, "event=own-samples-recovered samples=" + std::to_string(directory_.self().samples));
        break;
      case Directory::Outcome::updated:
      case Directory::Outcome::unchanged: break;
    }
  }
  if (changed_membership) persist_due_ = true;
  publish_progress();
  check_progress(now);
  check_finish(now);
}

// ---- deltas ----------------------------------------------------------------------------------

void NodeImpl::on_bulk(Session& session, std::span<const std::byte> message, Instant now) {
  if (!session.established) return refuse(session, Error{"handshake", "a delta came before the handshake was done"}, now);
  Neighbour& neighbour = neighbours_[session.theirs->id];
  const auto kind = bulk_kind(message);
  if (!kind || !neighbour.link) {
    if (kind) return;  // exchange is off here
    return on_refused_data(session, 1, Reject::malformed, now);
  }
  Link& link = *neighbour.link;
  const std::uint64_t refused_before = link.counters().refused_total();
  std::optional<Reject> whole;
  if (*kind == BulkKind::replica_state) {
    whole = link.on_replica_state(message, now);
    flush_link(neighbour);
  } else {
    whole = link.on_turn(message, session.rtt_seconds, now);
  }
  const std::uint64_t refused = link.counters().refused_total() - refused_before;
  if (whole || refused > 0) return on_refused_data(session, refused, whole, now);
  if (link.my_turn()) neighbour.refusals = 0;
  if (!has_model_ || phase_ == Phase::broken) adopt(now);
  recall_if_owing();
  if (round_has_reason(now)) start_round(now);
}

void NodeImpl::on_refused_data(Session& session, std::uint64_t refused, std::optional<Reject> whole, Instant now) {
  Neighbour& neighbour = neighbours_[session.theirs->id];
  ++neighbour.refusals;
  log(Level::warning, "event=delta-refused peer=" + to_hex(session.theirs->id) + " count=" + std::to_string(refused) + " reason=" +
                          (whole ? to_string(*whole) : "record"));
  if (neighbour.refusals >= config_.exchange.refusals_until_quarantine) {
    const Duration length = quarantine_min * (1u << std::min(neighbour.quarantines, quarantine_doublings_max));
    ++neighbour.quarantines;
    neighbour.refusals = 0;
    neighbour.quarantined_until = now + length;
    if (neighbour.link) neighbour.link->forget();
    return refuse(session, Error{"quarantined", "too many deltas had to be refused; this link rests for " +
                                                    std::to_string(static_cast<int>(seconds(length))) + " s"}, now);
  }
  // After a message that made no sense the turns are out of step: open again and compare hashes.
  if (whole) {
    const std::uint32_t refusals = neighbour.refusals;
    refuse(session, Error{"delta-refused", std::string("a message of the exchange was refused: ") + to_string(*whole)}, now);
    neighbour.refusals = refusals;
    return;
  }
  if (neighbour.link)
    if (auto blocks = neighbour.link->take_resync(); !blocks.empty()) send(session, Resync{std::move(blocks)});
}

void NodeImpl::flush_link(Neighbour& neighbour) {
  const auto session = sessions_.find(neighbour.session);
  for (SharedBytes& message : neighbour.link->take_messages()) {
    if (session == sessions_.end()) continue;
    session->second.bulk_outstanding += message->size();
    emit(SendEffect{session->first, Lane::bulk, std::move(message)});
  }
}

// ---- failure detection -----------------------------------------------------------------------

void NodeImpl::detect_failures(Instant now) {
  const MembershipPolicy& policy = config_.membership;
  std::vector<std::pair<SessionId, std::string>> dead;
  for (auto& [id, session] : sessions_) {
    const Duration silence = now - session.last_byte;
    if (!session.established) {
      if (now - session.opened > policy.handshake_timeout) dead.emplace_back(id, "no handshake in time");
    } else if (silence > policy.fail_after) {
      dead.emplace_back(id, "silent for " + std::to_string(static_cast<int>(seconds(silence))) + " s");
    } else if (silence > policy.suspect_after && directory_.set_suspect(session.theirs->id, true)) {
      log(Level::info, "event=member-suspect peer=" + to_hex(session.theirs->id) + " reason=silent");
    }
  }
  for (const auto& [id, reason] : dead) close(id, reason, now, true);

  bool changed = false;
  std::vector<NodeId> failed;
  for (const auto& [id, entry] : directory_.entries()) {
    if (id == state_.id || entry.record.state != MemberState::alive || session_of(id) != nullptr) continue;
    // Without a session its tick comes through others, or not at all.
    const Duration silence = now - entry.refreshed;
    const Duration slack = entry.suspect && neighbours_.contains(id) ? Duration{} : policy.tick * gossip_hops;
    if (silence > policy.fail_after + slack) failed.push_back(id);
    else if (silence > policy.suspect_after + slack) directory_.set_suspect(id, true);
  }
  for (const NodeId id : failed)
    if (directory_.set_failed(id, now)) {
      log(Level::warning, "event=member-failed peer=" + to_hex(id) + " by=silence");
      changed = true;
    }
  for (auto& [id, neighbour] : neighbours_)
    if (neighbour.link && neighbour.session == SessionId{} && now - neighbour.down_since > link_memory && stage_ <= RoundStage::waiting)
      neighbour.link.reset();
  if (changed) {
    persist_due_ = true;
    gossip(now);
  }
}

}  // namespace gossipd
