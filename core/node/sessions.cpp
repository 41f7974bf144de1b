// Connections: their messages and their end. The handshake is in handshake.cpp.
#include <algorithm>

#include "core/base/printable.h"
#include "core/model/job_hash.h"
#include "core/node/conductor.h"

namespace gossipd {

// ---- beginning and end --------------------------------------------------------------------------

void Conductor::on_dial_failed(const Endpoint& endpoint, std::string reason, bool own_shortage,
                               Instant now) {
  const bool is_news = dialer_.on_failed(endpoint, reason);
  if (!own_shortage) {
    note_found(endpoint, NodeId{}, reason);
    accuse_all_at(endpoint, NodeId{}, "cannot be dialled", now);
  }
  if (!is_news) return;
  log(Level::warning, "event=dial-failed endpoint=" + log_word(to_string(endpoint)) +
                          " reason=" + log_quoted(reason));
  note_refusal(false, to_string(endpoint), Error{"dial-failed", std::move(reason)}, now);
}

void Conductor::on_session_open(SessionId id, bool outbound, Endpoint remote, Instant now) {
  const NodeId probed = outbound ? dialer_.on_connected(remote) : NodeId{};
  if (life_.is_stopping() || job_.next.is_telling() || peers_.is_full() ||
      (life_.is(Phase::left) && outbound)) {
    emit(CloseEffect{id, "not accepting sessions"});
    return;
  }
  Session& session = peers_.open(id, outbound, std::move(remote));
  detector_.on_open(id, now);
  session.probed = probed;
  if (may_say_hello()) return say_hello(session);
  session.stage = Session::Stage::hello_due;
}

void Conductor::on_session_closed(SessionId id, const std::string& reason, Instant now) {
  const Session* session = peers_.find(id);
  if (session == nullptr) return;
  const bool was_established = session->established();
  const NodeId peer = session->theirs ? session->theirs->id : NodeId{};
  const bool answered = !session->outbound || session->theirs;
  const Endpoint remote = session->remote;
  const Instant last_heard = detector_.last_heard(id);
  if (!was_established && !(session->theirs && session->theirs->probe))
    note_refusal(false, who(*session),
                 Error{"closed", "closed before the handshake was done: " + reason}, now);
  close(id, reason, now, false);
  if (was_established) accuse(peer, last_heard, reason);
  if (!answered) {
    note_found(remote, NodeId{}, reason);
    accuse_all_at(remote, NodeId{}, reason, now);
  }
  timers_.by(Duty::overlay, now);
}

void Conductor::close(SessionId id, const std::string& reason, Instant now, bool tell_driver) {
  const std::optional<Session> session = peers_.close(id, now);
  if (!session) return;
  detector_.on_end(id);
  transfer_.on_session_end(id);
  if (tell_driver) emit(CloseEffect{id, reason});
  if (!session->established()) {
    if (session->outbound) dialer_.on_broken_off(session->remote);
    return;
  }
  const NodeId peer = session->theirs->id;
  if (Link* link = peers_.neighbour(peer)->link.get(); link != nullptr) {
    if (needs_model() && link->is_open()) source_.keep(peer, *link);
    link->close();
    // The other end has given up this node, which stood still and is a newcomer now, and gone on.
    // The link starts over: whole blocks at the first exchange, of which this node takes nearly
    // all, and the other no more than of a joiner.
    if (detector_.is_thawing(now)) link->forget();
  }
  log(Level::info, "event=link-down peer=" + to_hex(peer) + " reason=" + log_quoted(reason));
}

void Conductor::close_all(const char* bye, const std::string& reason, Instant now) {
  for (const SessionId id : peers_.established_ids()) send(*peers_.find(id), Bye{bye});
  for (const SessionId id : peers_.ids()) close(id, reason, now, true);
}

std::string Conductor::who(const Session& session) const {
  if (session.theirs)
    return log_word(session.theirs->name) + " (" + to_hex(session.theirs->id) + ")";
  // An inbound connection has another port each time.
  return session.outbound ? log_word(to_string(session.remote)) : session.remote.host;
}

// ---- sending ------------------------------------------------------------------------------------

void Conductor::send(Session& session, const Control& message) {
  emit(SendEffect{session.id, Lane::control,
                  std::make_shared<const Bytes>(encode_control(message))});
}

void Conductor::send_bulk(Session& session, SharedBytes message) {
  session.bulk_outstanding += message->size();
  emit(SendEffect{session.id, Lane::bulk, std::move(message)});
}

void Conductor::flush_link(Neighbour& neighbour) {
  Session* session = peers_.find(neighbour.session);
  for (SharedBytes& message : neighbour.link->take_messages())
    if (session != nullptr) send_bulk(*session, std::move(message));
}

void Conductor::ping(Session& session, Instant now) {
  const std::uint64_t nonce = random_.next() | 1;
  session.round_trip.on_ping(nonce, config_.membership.ping, config_.membership.fail_after, now);
  send(session, Ping{nonce, links_told()});
}

void Conductor::on_bulk_sent(SessionId id, std::size_t bytes, Instant now) {
  Session* session = peers_.find(id);
  if (session == nullptr) return;
  session->bulk_outstanding -= std::min(bytes, session->bulk_outstanding);
  if (session->established()) peers_.neighbour_of(*session).path.on_large_sent(now);
}

// ---- control messages ---------------------------------------------------------------------------

void Conductor::on_bytes(SessionId id, Instant now) {
  const Session* session = peers_.find(id);
  if (session == nullptr) return;
  if (session->established()) void_lonely_verdicts(now);
  detector_.on_sign_of_life(id, now);
  if (session->established()) directory_.heard_from(session->theirs->id, now);
}

void Conductor::on_message(SessionId id, Lane lane, std::span<const std::byte> message,
                           Instant now) {
  Session* session = peers_.find(id);
  if (session == nullptr) return;
  on_bytes(id, now);
  if (lane == Lane::bulk) {
    if (session->stage != Session::Stage::doubted) on_bulk(*session, message, now);
    return;
  }
  Result<Control> control = decode_control(message);
  if (!control) return refuse(*session, control.error(), now);
  if (!is_admitted(*session, *control, message.size(), now))
    return on_flood(*session, "control messages come faster than anybody needs", now);
  handle(*session, std::move(*control), now);
}

// Messages that are allowed before the link is established; all others come after it.
void Conductor::handle(Session& session, Control message, Instant now) {
  if (auto* hello = std::get_if<Hello>(&message)) {
    if (session.stage != Session::Stage::hello_due) return on_hello(session, *hello, now);
    if (session.early) return refuse(session, Error{"handshake", "a second hello"}, now);
    session.early = std::move(*hello);
    return;
  }
  if (const auto* refusal = std::get_if<Refuse>(&message))
    return on_refused(session, refusal->reason, now);
  if (const auto* notice = std::get_if<Cloned>(&message)) return on_cloned(session, *notice, now);
  if (const auto* told = std::get_if<Succession>(&message))
    return on_succession(session, *told, now);
  // Also while this node doubts the other: both may doubt each other.
  if (const auto* ping = std::get_if<Ping>(&message); ping != nullptr && session.theirs) {
    session.links_told = ping->links;
    return send(session, Pong{ping->nonce, peers_.clock().ms_at(now)});
  }
  if (session.stage == Session::Stage::doubted) {
    const auto* pong = std::get_if<Pong>(&message);
    if (pong != nullptr && session.round_trip.awaits(pong->nonce)) on_proof_of_life(session, now);
    return;
  }
  if (const auto* members = std::get_if<Members>(&message))
    return on_members(session, *members, now);
  if (!session.established())
    return refuse(session, Error{"handshake", "a message came before the handshake was done"}, now);
  handle_established(session, message, now);
}

void Conductor::handle_established(Session& session, const Control& message, Instant now) {
  Neighbour& neighbour = peers_.neighbour_of(session);
  if (std::get_if<JobRequest>(&message)) {
    if (!job_.document.empty())
      send(session, JobOffer{state_.job, progress_.in_force(), job_.document});
  } else if (const auto* offer = std::get_if<JobOffer>(&message)) {
    on_job_offer(session, *offer, now);
  } else if (const auto* request = std::get_if<FileRequest>(&message)) {
    on_file_request(session, *request);
  } else if (const auto* absent = std::get_if<FileAbsent>(&message)) {
    if (transfer_.on_absent(session.id, absent->file)) ask_for_file(now);
  } else if (const auto* ready = std::get_if<Ready>(&message)) {
    if (session.ready_theirs) return refuse(session, Error{"handshake", "a second ready"}, now);
    session.ready_theirs = *ready;
    try_open(session, now);
  } else if (const auto* pong = std::get_if<Pong>(&message)) {
    if (const auto asked = session.round_trip.on_pong(pong->nonce, now)) {
      neighbour.path.on_answer(*asked);
      session.clock_ahead_s = peers_.clock().seconds_ahead(pong->clock_ms, *asked, now);
    }
  } else if (std::get_if<Spare>(&message)) {
    session.is_spare = true;
  } else if (const auto* resync = std::get_if<Resync>(&message)) {
    on_resync(session, *resync, now);
  } else if (const auto* bye = std::get_if<Bye>(&message)) {
    on_bye(session, *bye, now);
  } else if (const auto* told = std::get_if<Reached>(&message)) {
    on_reached(session, *told);
  } else if (const auto* digest = std::get_if<Digest>(&message)) {
    send_records(session, directory_.differing(digest->buckets));
  }
}

// By the peer.
void Conductor::on_refused(Session& session, const Error& reason, Instant now) {
  const bool passes = reason.code == "no-job";  // mostly within a round trip
  // A node with all its links is nothing that an operator need know of: it named others.
  if (reason.code != "duplicate" && reason.code != "self" && reason.code != "cloned" &&
      reason.code != "full") {
    log(passes ? Level::info : Level::warning, "event=refused-by peer=" + who(session) +
                                                   " code=" + log_word(reason.code) +
                                                   " reason=" + log_quoted(reason.text));
    note_refusal(false, who(session), reason, now);
  }
  if (session.outbound && reason.code != "duplicate" && !passes) dialer_.on_refused(session.remote);
  close(session.id, "refused by the peer: " + reason.code, now, true);
}

void Conductor::on_job_offer(Session& session, const JobOffer& offer, Instant now) {
  // Of the job before, the driver would put its text in the place of the next one's.
  if (state_.job != JobHash{} || job_.next.is_under_way()) return;
  if (job_hash_of(offer.document) != offer.hash)
    return refuse(session,
                  Error{"job-corrupt", "the job's text does not have the hash it was offered with"},
                  now);
  if (offer.budget_samples > budget_samples_max)
    return refuse(session, Error{"job-corrupt", "the job was offered with an impossible budget"},
                  now);
  if (state_.meeting_in != ClusterId{} &&
      JobGeneration{state_.generation, offer.hash}.meeting_in(state_.cluster) != state_.meeting_in)
    return refuse(session, Error{"job-mismatch", "the job offered is not the one of this cluster"},
                  now);
  state_.job = offer.hash;
  job_.document = offer.document;
  progress_.on_job(offer.budget_samples);
  persistence_.urge();
  set_phase(Phase::preparing, "the job has arrived from " + who(session));
  emit(JobEffect{job_.document, state_.job});
}

void Conductor::on_bye(Session& session, const Bye& bye, Instant now) {
  const NodeId peer = session.theirs->id;
  const bool rotated = bye.why == bye_rotated;
  log(Level::info, "event=bye peer=" + to_hex(peer) + " why=" + log_word(bye.why));
  close(session.id, "the peer says goodbye: " + bye.why, now, true);
  if (!rotated) accuse(peer, now, "it says goodbye: " + bye.why);
  timers_.by(Duty::overlay, now);
}

// ---- the exchange -------------------------------------------------------------------------------

void Conductor::on_bulk(Session& session, std::span<const std::byte> message, Instant now) {
  if (!session.established())
    return refuse(session, Error{"handshake", "a delta came before the handshake was done"}, now);
  if (is_file_piece(message)) return on_file_piece(session, message, now);
  Neighbour& neighbour = peers_.neighbour_of(session);
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
    if (!whole && !link.is_open()) {
      send(session, Bye{bye_rotated});
      return close(session.id, "too much to say again; the link begins afresh", now, true);
    }
    flush_link(neighbour);
  } else {
    whole = link.on_turn(message, session.round_trip.smoothed_seconds(), now);
  }
  const std::uint64_t refused = link.counters().refused_total() - refused_before;
  if (whole || refused > 0) return on_refused_data(session, refused, whole, now);
  if (link.my_turn()) neighbour.refusals = 0;
  neighbour.turn_owed_since = now;
  if (source_.is_missing() && *kind == BulkKind::turn) source_.hear(link, round_.copies());
  adopt(now);
  recall_if_owing();
}

void Conductor::on_refused_data(Session& session, std::uint64_t refused,
                                std::optional<Reject> whole, Instant now) {
  Neighbour& neighbour = peers_.neighbour_of(session);
  ++neighbour.refusals;
  log(Level::warning, "event=delta-refused peer=" + to_hex(session.theirs->id) +
                          " count=" + std::to_string(refused) +
                          " reason=" + (whole ? to_string(*whole) : "record"));
  if (whole == Reject::endless_turn)
    return quarantine(session, "a turn says more than the whole model", now);
  if (neighbour.refusals >= config_.exchange.guard.refusals_until_quarantine)
    return quarantine(session, "too many deltas had to be refused", now);
  // After a message that made no sense the turns are out of step, so the link opens again and
  // compares hashes. So does a node without a model: it never has a turn in which to ask for a
  // block.
  if (whole || needs_model()) {
    return refuse(session,
                  Error{"delta-refused", std::string("a message of the exchange was refused: ") +
                                             (whole ? to_string(*whole) : "a record of the model")},
                  now);
  }
  if (neighbour.link)
    if (auto blocks = neighbour.link->take_resync(); !blocks.empty())
      send(session, Resync{std::move(blocks)});
}

}  // namespace gossipd
