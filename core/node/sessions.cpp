// Connections: the handshake, what is said on them, their end.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/base/printable.h"
#include "core/node/node_impl.h"

namespace gossipd {
namespace {

constexpr std::size_t sessions_max = 256;
// members, to who asks a node that has no room or has left
constexpr std::size_t named_when_refused = 32;

}  // namespace

// In words that are right at both ends, as both show them.
Error NodeImpl::no_common_protocol(const Hello& hello) const {
  const auto range = [](const std::string& name, const ProtocolRange& r) {
    return name + " speaks protocol " + std::to_string(r.oldest) +
           (r.newest == r.oldest ? "" : " to " + std::to_string(r.newest));
  };
  const ProtocolRange own = protocols(), peers{hello.protocol, hello.newest};
  const std::string& behind = own.newest < peers.newest ? config_.name : hello.name;
  return Error{"protocol-mismatch", range(config_.name, own) + " and " + range(hello.name, peers) +
                                        ": none in common; install a newer gossipd on " + behind +
                                        ", or take away its setting membership.protocol"};
}

// ---- dials that fail ----------------------------------------------------------------------------

void NodeImpl::on_dial_failed(const Endpoint& endpoint, std::string reason, Instant now) {
  DialState& state = dials_[endpoint];
  state.in_flight = false;
  state.probed = NodeId{};
  ++state.failures;
  accuse_all_at(endpoint, NodeId{}, "cannot be dialled", now);
  if (state.last_reason == reason) return;
  state.last_reason = reason;
  log(Level::warning,
      "event=dial-failed endpoint=" + to_string(endpoint) + " reason=\"" + reason + "\"");
  note_refusal(false, to_string(endpoint), Error{"dial-failed", std::move(reason)}, now);
}

// ---- sessions --------------------------------------------------------------------------------

std::size_t NodeImpl::established_sessions() const {
  return static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [](const auto& item) { return item.second.established; }));
}

NodeImpl::Session* NodeImpl::session_of(NodeId peer) {
  const auto neighbour = neighbours_.find(peer);
  if (neighbour == neighbours_.end()) return nullptr;
  const auto session = sessions_.find(neighbour->second.session);
  return session == sessions_.end() ? nullptr : &session->second;
}

std::string NodeImpl::who(const Session& session) const {
  if (session.theirs)
    return log_word(session.theirs->name) + " (" + to_hex(session.theirs->id) + ")";
  // the port of who dials is another each time
  return session.outbound ? to_string(session.remote) : session.remote.host;
}

void NodeImpl::send(Session& session, const Control& message) {
  emit(SendEffect{session.id, Lane::control,
                  std::make_shared<const Bytes>(encode_control(message))});
}

void NodeImpl::send_bulk(Session& session, SharedBytes message) {
  session.bulk_outstanding += message->size();
  emit(SendEffect{session.id, Lane::bulk, std::move(message)});
}

void NodeImpl::on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now) {
  NodeId probed{};
  if (outbound) {
    dials_[remote].in_flight = false;
    probed = std::exchange(dials_[remote].probed, NodeId{});
  }
  if (life_.is_stopping() || sessions_.size() >= sessions_max ||
      (life_.is(Phase::left) && outbound)) {
    emit(CloseEffect{id, "not accepting sessions"});
    return;
  }
  Session& session = sessions_[id];
  session.id = id;
  session.outbound = outbound;
  session.remote = std::move(remote);
  detector_.on_open(id, now);
  session.probed = probed;
  session.hello_due = !may_say_hello();
  if (!session.hello_due) say_hello(session);
}

void NodeImpl::say_hello(Session& session) {
  const ProtocolRange spoken = protocols();
  send(session, Hello{spoken.oldest, durable_.cluster(), state_.id, state_.incarnation,
                      config_.name, config_.advertise, state_.job, life_.is(Phase::left),
                      session.probed != NodeId{}, spoken.newest, instance_});
}

// The disk has come to hold what they say.
void NodeImpl::say_due_hellos(Instant now) {
  std::vector<SessionId> due;
  for (const auto& [id, session] : sessions_)
    if (session.hello_due) due.push_back(id);
  for (const SessionId id : due) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    session.hello_due = false;
    say_hello(session);
    if (const auto early = std::exchange(session.early, std::nullopt))
      on_hello(session, *early, now);
  }
}

void NodeImpl::close(SessionId id, const std::string& reason, Instant now, bool tell_driver) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const Session session = std::move(found->second);
  sessions_.erase(found);
  detector_.on_end(id);
  transfer_.on_session_end(id);
  if (tell_driver) emit(CloseEffect{id, reason});
  if (session.outbound && !session.established) ++dials_[session.remote].failures;
  if (!session.theirs) return;
  const auto neighbour = neighbours_.find(session.theirs->id);
  if (neighbour == neighbours_.end() || neighbour->second.session != id) return;
  neighbour->second.session = SessionId{};
  neighbour->second.down_since = now;
  neighbour->second.path.on_session_end(now);
  if (Link* link = neighbour->second.link.get(); link != nullptr) {
    if (needs_model() && link->is_open()) source_.keep(session.theirs->id, *link);
    link->close();
    // The other end has given up this node, which stood still, and gone on. The link starts over:
    // whole blocks at the first exchange, of which this node takes nearly all, and the other no
    // more than of a joiner.
    if (detector_.is_thawing(now)) link->forget();
  }
  log(Level::info,
      "event=link-down peer=" + to_hex(session.theirs->id) + " reason=\"" + reason + "\"");
}

void NodeImpl::on_session_closed(SessionId id, const std::string& reason, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const bool was_established = found->second.established;
  const NodeId peer = found->second.theirs ? found->second.theirs->id : NodeId{};
  const bool answered = !found->second.outbound || found->second.theirs;
  const Endpoint remote = found->second.remote;
  const Instant last_heard = detector_.last_heard(id);
  if (!was_established && !(found->second.theirs && found->second.theirs->probe))
    note_refusal(false, who(found->second),
                 Error{"closed", "closed before the handshake was done: " + reason}, now);
  close(id, reason, now, false);
  if (was_established) accuse(peer, last_heard, reason, now);
  if (!answered) accuse_all_at(remote, NodeId{}, reason, now);
  check_finish(now);
  dial_if_needed(now);
}

void NodeImpl::on_bytes(SessionId id, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  detector_.on_sign_of_life(id, now);
  if (found->second.established) directory_.heard_from(found->second.theirs->id, now);
}

void NodeImpl::on_bulk_sent(SessionId id, std::size_t bytes, Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second.bulk_outstanding -= std::min(bytes, found->second.bulk_outstanding);
  if (found->second.established) neighbours_[found->second.theirs->id].path.on_large_sent(now);
  begin_round_if_due(now);
}

void NodeImpl::on_message(SessionId id, Lane lane, std::span<const std::byte> message,
                          Instant now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  on_bytes(id, now);
  if (lane == Lane::bulk)
    return found->second.doubted ? static_cast<void>(0) : on_bulk(found->second, message, now);
  Result<Control> control = decode_control(message);
  if (!control) return refuse(found->second, control.error(), now);
  if (!is_admitted(found->second, *control, message.size(), now))
    return on_flood(found->second, "control messages come faster than anybody needs", now);
  handle(found->second, std::move(*control), now);
}

void NodeImpl::handle(Session& session, Control message, Instant now) {
  if (auto* hello = std::get_if<Hello>(&message)) {
    if (!session.hello_due) return on_hello(session, *hello, now);
    if (session.early) return refuse(session, Error{"handshake", "a second hello"}, now);
    session.early = std::move(*hello);
    return;
  }
  if (auto* refusal = std::get_if<Refuse>(&message)) {
    if (refusal->reason.code != "duplicate" && refusal->reason.code != "self" &&
        refusal->reason.code != "cloned") {
      log(Level::warning, "event=refused-by peer=" + who(session) + " code=" +
                              refusal->reason.code + " reason=\"" + refusal->reason.text + "\"");
      note_refusal(false, who(session), refusal->reason, now);
    }
    if (session.outbound && refusal->reason.code != "duplicate")
      dials_[session.remote].failures = std::max(4u, dials_[session.remote].failures + 1);
    return close(session.id, "refused by the peer: " + refusal->reason.code, now, true);
  }
  if (auto* notice = std::get_if<Cloned>(&message)) return on_cloned(session, *notice, now);
  if (session.doubted) {
    const auto* pong = std::get_if<Pong>(&message);
    return pong != nullptr && session.round_trip.awaits(pong->nonce)
               ? on_proof_of_life(session, now)
               : static_cast<void>(0);
  }
  if (auto* members = std::get_if<Members>(&message)) return on_members(session, *members, now);
  if (const auto* ping = std::get_if<Ping>(&message); ping != nullptr && session.theirs)
    return send(session, Pong{ping->nonce});
  if (!session.established)
    return refuse(session, Error{"handshake", "a message came before the handshake was done"}, now);
  if (std::get_if<JobRequest>(&message)) {
    if (!job_document_.empty())
      send(session, JobOffer{state_.job, progress_.in_force(), job_document_});
  } else if (auto* offer = std::get_if<JobOffer>(&message)) {
    if (state_.job != JobHash{}) return;
    if (JobHash{XXH3_64bits(offer->document.data(), offer->document.size())} != offer->hash)
      return refuse(
          session,
          Error{"job-corrupt", "the job's text does not have the hash it was offered with"}, now);
    state_.job = offer->hash;
    job_document_ = offer->document;
    progress_.on_job(offer->budget_samples);
    persist();
    set_phase(Phase::preparing, "the job has arrived from " + who(session));
    emit(JobEffect{job_document_, state_.job});
  } else if (auto* request = std::get_if<FileRequest>(&message)) {
    on_file_request(session, *request);
  } else if (auto* absent = std::get_if<FileAbsent>(&message)) {
    if (transfer_.on_absent(session.id, absent->file)) ask_for_file(now);
  } else if (auto* ready = std::get_if<Ready>(&message)) {
    if (session.ready_theirs) return refuse(session, Error{"handshake", "a second ready"}, now);
    session.ready_theirs = *ready;
    try_open(session, now);
  } else if (auto* pong = std::get_if<Pong>(&message)) {
    if (const auto asked = session.round_trip.on_pong(pong->nonce, now))
      neighbours_[session.theirs->id].path.on_answer(*asked);
  } else if (auto* resync = std::get_if<Resync>(&message)) {
    if (Neighbour& neighbour = neighbours_[session.theirs->id]; neighbour.link)
      neighbour.link->on_resync(*resync);
  } else if (auto* bye = std::get_if<Bye>(&message)) {
    const NodeId peer = session.theirs->id;
    const bool rotated = bye->why == bye_rotated;
    log(Level::info, "event=bye peer=" + to_hex(peer) + " why=" + bye->why);
    close(session.id, "the peer says goodbye: " + bye->why, now, true);
    if (!rotated) accuse(peer, now, "it says goodbye: " + bye->why, now);
    check_finish(now);
    dial_if_needed(now);
  } else if (auto* digest = std::get_if<Digest>(&message)) {
    send_records(session, directory_.differing(digest->buckets));
  }
}

// ---- handshake -------------------------------------------------------------------------------

std::optional<Error> NodeImpl::check_hello(const Hello& hello) const {
  if (hello.id == state_.id && (hello.instance == instance_ || hello.instance == 0))
    return Error{"self", "the connection comes back to the node that made it"};
  if (hello.id == state_.id)
    return Error{"cloned", "another process of the id " + to_hex(hello.id) +
                               " is running; one of them takes a new id"};
  if (const ProtocolRange peers{hello.protocol, hello.newest}; !common_protocol(protocols(), peers))
    return no_common_protocol(hello);
  const Directory::Entry* known = directory_.find(hello.id);
  if (!is_plausible_incarnation(
          hello.incarnation,
          known == nullptr ? std::nullopt : std::optional(known->record.incarnation),
          Told::of_itself))
    return Error{"implausible",
                 hello.name + " says that it is in life " + std::to_string(hello.incarnation) +
                     ", which cannot be" +
                     "; its state is damaged, or it lies: give it a new state directory"};
  if (life_.is_going() || hello.leaving)
    return Error{"left", std::string(hello.leaving ? "the peer" : "this node") +
                             " has left the cluster; `gossipctl join` brings it back"};
  if (hello.cluster == ClusterId{} && state_.cluster == ClusterId{})
    return Error{"both-joining",
                 "neither node belongs to a cluster yet; start one with --job and without --join"};
  if (hello.cluster != ClusterId{} && state_.cluster != ClusterId{} &&
      hello.cluster != state_.cluster)
    return Error{
        "cluster-mismatch",
        "cluster " + to_hex(hello.cluster) + " meets cluster " + to_hex(state_.cluster) +
            "; clusters never merge: point --join at the right one or use another state directory"};
  if (hello.job != JobHash{} && state_.job != JobHash{} && hello.job != state_.job)
    return Error{"job-mismatch",
                 "job " + to_hex(hello.job) + " meets job " + to_hex(state_.job) +
                     "; start without --job to take the cluster's, or found a cluster of your own"};
  return std::nullopt;
}

void NodeImpl::on_hello(Session& session, const Hello& hello, Instant now) {
  if (session.theirs) return refuse(session, Error{"handshake", "a second hello"}, now);
  session.theirs = hello;
  if (session.theirs->address.host.empty()) session.theirs->address.host = session.remote.host;
  if (session.outbound)
    accuse_all_at(session.remote, hello.id, "another node answers at its address", now);
  if (const auto error = check_hello(hello)) {
    if (hello.leaving && hello.cluster == state_.cluster) note_left(hello, now);
    if (error->code == "self") on_reflected(session, now);
    if (error->code == "cloned") {
      const bool we_keep = instance_ < hello.instance;
      const Endpoint theirs = session.theirs->address;
      const Cloned notice{state_.id, std::min(instance_, hello.instance),
                          std::max(instance_, hello.instance), we_keep ? config_.advertise : theirs,
                          we_keep ? theirs : config_.advertise};
      send(session, notice);
      refuse(session, *error, now);
      return we_keep ? on_cloned(notice, NodeId{}, now) : take_another_id(notice, now);
    }
    // Who has left refuses, too, and names others before it does.
    const bool we_left = life_.is_going();
    const bool same_cluster = hello.cluster == state_.cluster || hello.cluster == ClusterId{};
    if (error->code == "left" && we_left && same_cluster)
      send_records(session, directory_.sample(named_when_refused, random_));
    if (error->code == "left" && !we_left && session.outbound && session.probed == NodeId{}) return;
    return refuse(session, *error, now);
  }
  session.protocol = *common_protocol(protocols(), {hello.protocol, hello.newest});
  if (is_alone(session, now)) admit(session, now);
}

void NodeImpl::admit(Session& session, Instant now) {
  const Hello& hello = *session.theirs;
  if (session.probed != NodeId{}) return on_probe_answered(session, now);
  if (hello.probe) return;  // our own hello was the answer
  const auto neighbour = neighbours_.find(hello.id);
  if (neighbour != neighbours_.end() && now < neighbour->second.quarantined_until)
    return refuse(
        session,
        Error{"quarantined",
              "this peer went beyond what is allowed; it is let in again in " +
                  std::to_string(
                      static_cast<int>(seconds(neighbour->second.quarantined_until - now)) + 1) +
                  " s"},
        now);
  if (neighbour != neighbours_.end() && !neighbour->second.allowance.admit_link(now))
    return on_flood(session, "links come faster than any line breaks", now);
  if (Session* existing = session_of(hello.id); existing != nullptr) {
    if (keep_existing(*existing, session))
      return refuse(session, Error{"duplicate", "there is a session already"}, now);
    close(existing->id, "replaced by a newer session", now, true);
  } else if (established_sessions() >= config_.membership.links_max) {
    send_records(session, directory_.sample(named_when_refused, random_));
    return refuse(session,
                  Error{"full", "this node has all the links it accepts; ask the members it named"},
                  now);
  }
  establish(session, now);
}

// Both ends must keep the same one of two sessions: the one that the lower id dialled; of two in
// one direction, or after a restart, the newer.
bool NodeImpl::keep_existing(const Session& existing, const Session& fresh) const {
  if (existing.theirs->incarnation != fresh.theirs->incarnation)
    return existing.theirs->incarnation > fresh.theirs->incarnation;
  if (existing.outbound == fresh.outbound) return false;
  const bool lower_is_self = raw(state_.id) < raw(fresh.theirs->id);
  return existing.outbound == lower_is_self;
}

void NodeImpl::ping(Session& session, Instant now) {
  const std::uint64_t nonce = random_.next() | 1;
  session.round_trip.on_ping(nonce, config_.membership.ping, config_.membership.fail_after, now);
  send(session, Ping{nonce});
}

void NodeImpl::establish(Session& session, Instant now) {
  const Hello& hello = *session.theirs;
  if (state_.cluster == ClusterId{}) {
    state_.cluster = hello.cluster;
    log(Level::info, "event=cluster-joined cluster=" + to_hex(state_.cluster));
  }
  // What a node alone has found out about others is its own.
  if (established_sessions() == 0) directory_.doubt_lonely_verdicts(now);
  session.established = true;
  detector_.on_established(session.id, hello.id);
  ping(session, now);  // before anything large is on the way: what the line itself takes
  if (session.outbound) {
    dial_budget_.answered(session.remote);
    dials_[session.remote].failures = 0;
    dials_[session.remote].last_reason.clear();
  }
  learn_from(hello, now);
  accuse_all_at(session.theirs->address, hello.id, "another node is at its address", now);
  directory_.heard_from(hello.id, now);
  Neighbour& neighbour = neighbours_[hello.id];
  neighbour.session = session.id;
  log(Level::info, "event=link-up peer=" + to_hex(hello.id) + " name=" + log_word(hello.name) +
                       " direction=" + (session.outbound ? "out" : "in"));
  persist();
  session.news_told = directory_.news();
  if (const Directory::Entry* known = directory_.find(hello.id);
      known != nullptr && known->record.samples > 0)
    send_records(session, {known->record});
  send(session, Digest{directory_.digest()});
  send_stats(session, 0, now);
  if (state_.job == JobHash{} && hello.job != JobHash{}) send(session, JobRequest{});
  ask_for_file(now);
  if (source_.trainer_stands()) {
    if (life_.is(Phase::joining) && source_.has_model()) begin_training(now);
    send_ready(session, now);
  }
  drop_rotated_link(session, now);
}

// A hello tells of a life that gossip may not have told of yet.
void NodeImpl::learn_from(const Hello& hello, Instant now) {
  MemberRecord record;
  record.id = hello.id;
  record.name = hello.name;
  record.address = hello.address;
  record.incarnation = hello.incarnation;
  if (const auto* known = directory_.find(hello.id);
      known == nullptr || known->record.incarnation < hello.incarnation) {
    if (known != nullptr) record.samples = known->record.samples;
    merge_records({record}, now);
  }
}

void NodeImpl::refuse(Session& session, Error reason, Instant now) {
  const bool quiet = reason.code == "duplicate" || reason.code == "self" || reason.code == "full" ||
                     reason.code == "cloned";
  log(quiet ? Level::debug : Level::warning, "event=refuse peer=" + who(session) + " code=" +
                                                 reason.code + " reason=\"" + reason.text + "\"");
  if (!quiet) note_refusal(true, who(session), reason, now);
  if (session.outbound && reason.code != "duplicate")
    dials_[session.remote].failures = std::max(4u, dials_[session.remote].failures + 1);
  send(session, Refuse{reason});
  close(session.id, "refused: " + reason.code, now, true);
}

void NodeImpl::send_ready(Session& session, Instant now) {
  if (session.ready_mine || !config_.exchange.enabled) return;
  Neighbour& neighbour = neighbours_[session.theirs->id];
  if (!neighbour.link)
    neighbour.link = std::make_unique<Link>(state_.id, session.theirs->id, schema_,
                                            config_.exchange, transfer_guard_.get());
  bound_conversations();
  Ready ready;
  ready.schema = schema_.hash();
  ready.has_model = !needs_model();
  ready.nonce = random_.next();
  neighbour.link->describe(ready);
  if (needs_model()) order_blocks(session.theirs->id, ready, now);
  session.ready_mine = ready;
  send(session, ready);
}

void NodeImpl::try_open(Session& session, Instant now) {
  if (!session.ready_mine || !session.ready_theirs) return;
  Neighbour& neighbour = neighbours_[session.theirs->id];
  if (!neighbour.link || neighbour.link->is_open()) return;
  if (session.ready_mine->schema != session.ready_theirs->schema)
    return refuse(session,
                  Error{"schema-mismatch", "schema " + to_hex(session.ready_theirs->schema) +
                                               " meets schema " + to_hex(schema_.hash()) +
                                               "; the two models differ in a shape or a name"},
                  now);
  if (!session.ready_mine->has_model && !session.ready_theirs->has_model) {
    // This node has found one since it said so.
    if (!needs_model())
      close(session.id, "a model has arrived since; opening the link again", now, true);
    return;
  }
  if (!neighbour.link->orders(*session.ready_theirs))
    return refuse(
        session,
        Error{"malformed", "a ready names blocks that the model, of " +
                               std::to_string(schema_.blocks().size()) + ", does not have"},
        now);
  if (neighbour.link->open(*session.ready_mine, *session.ready_theirs, session.protocol, now)) {
    auto state =
        std::make_shared<const Bytes>(encode_replica_state(neighbour.link->replica_state()));
    send_bulk(session, std::move(state));
  }
  begin_round_if_due(now);
}

// ---- deltas ----------------------------------------------------------------------------------

void NodeImpl::on_bulk(Session& session, std::span<const std::byte> message, Instant now) {
  if (!session.established)
    return refuse(session, Error{"handshake", "a delta came before the handshake was done"}, now);
  if (is_file_piece(message)) return on_file_piece(session, message, now);
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
    whole = link.on_turn(message, session.round_trip.smoothed_seconds(), now);
  }
  const std::uint64_t refused = link.counters().refused_total() - refused_before;
  if (whole || refused > 0) return on_refused_data(session, refused, whole, now);
  if (link.my_turn()) neighbour.refusals = 0;
  if (source_.is_missing() && *kind == BulkKind::turn) source_.hear(link, round_.copies());
  adopt(now);
  recall_if_owing();
  begin_round_if_due(now);
}

void NodeImpl::on_refused_data(Session& session, std::uint64_t refused, std::optional<Reject> whole,
                               Instant now) {
  Neighbour& neighbour = neighbours_[session.theirs->id];
  ++neighbour.refusals;
  log(Level::warning, "event=delta-refused peer=" + to_hex(session.theirs->id) +
                          " count=" + std::to_string(refused) +
                          " reason=" + (whole ? to_string(*whole) : "record"));
  if (whole == Reject::endless_turn)
    return quarantine(session, "a turn says more than the whole model", now);
  if (neighbour.refusals >= config_.exchange.refusals_until_quarantine)
    return quarantine(session, "too many deltas had to be refused", now);
  // After a message that made no sense the turns are out of step: open again and compare hashes. A
  // node without a model never has a turn in which the block could be asked for and sent again: it
  // opens again, too.
  if (whole || needs_model()) {
    const std::uint32_t refusals = neighbour.refusals;
    refuse(session,
           Error{"delta-refused", std::string("a message of the exchange was refused: ") +
                                      (whole ? to_string(*whole) : "a record of the model")},
           now);
    neighbour.refusals = refusals;
    return;
  }
  if (neighbour.link)
    if (auto blocks = neighbour.link->take_resync(); !blocks.empty())
      send(session, Resync{std::move(blocks)});
}

void NodeImpl::flush_link(Neighbour& neighbour) {
  const auto session = sessions_.find(neighbour.session);
  for (SharedBytes& message : neighbour.link->take_messages())
    if (session != sessions_.end()) send_bulk(session->second, std::move(message));
}

}  // namespace gossipd
