// The handshake: from a peer's hello to an open link, or to a refusal that says why.
#include <algorithm>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

// Members that are named to a node that finds no room here, or meets a node that has left.
constexpr std::size_t named_when_refused = 32;

}  // namespace

// ---- hello --------------------------------------------------------------------------------------

void Conductor::say_hello(Session& session) {
  const ProtocolRange spoken = protocols();
  send(session,
       Hello{spoken.oldest, durable_.cluster(), state_.id, state_.incarnation, config_.name,
             config_.advertise, state_.job, life_.is(Phase::left), session.probed != NodeId{},
             spoken.newest, clones_.instance(), dialer_.founding().is_wanted(),
             durable_.cluster() == ClusterId{} ? ClusterId{} : state_.cluster, state_.generation,
             links_told(), session.outbound && dialer_.is_rotating(session.remote)});
}

// The disk holds the claims of these hellos now.
void Conductor::say_due_hellos(Instant now) {
  for (const SessionId id : peers_.ids()) {
    Session* session = peers_.find(id);
    if (session == nullptr || session->stage != Session::Stage::hello_due) continue;
    session->stage = Session::Stage::hello_said;
    say_hello(*session);
    if (const auto early = std::exchange(session->early, std::nullopt))
      on_hello(*session, *early, now);
  }
}

// In words that are right at both ends, as both show them.
Error Conductor::no_common_protocol(const Hello& hello) const {
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

std::optional<Error> Conductor::check_hello(const Hello& hello) const {
  if (hello.id == state_.id && (hello.instance == clones_.instance() || hello.instance == 0))
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
    return Error{
        "both-joining",
        "neither node belongs to a cluster yet; start one with --job and without --join, or "
        "as --bootstrap 0"};
  // What either has heard of members may be of the job before, and neither could tell.
  if (hello.job == JobHash{} && state_.job == JobHash{})
    return Error{"no-job", "neither node knows the cluster's job yet; another member tells it"};
  // Where a member has no job yet, a stranger's must not become the cluster's.
  if ((hello.job == JobHash{} && state_.cluster == ClusterId{}) ||
      (state_.job == JobHash{} && hello.cluster == ClusterId{}))
    return Error{"no-job",
                 "the member does not know its cluster's job yet, so it cannot say whether the "
                 "joiner has the same; it can once another member has told it"};
  if (hello.generation >= counter_max)
    return Error{"implausible", hello.name + " says that its cluster is at job " +
                                    std::to_string(hello.generation) + ", which cannot be"};
  if (hello.generation > JobGeneration::founding && hello.job != JobHash{} &&
      hello.cluster != JobGeneration{hello.generation, hello.job}.meeting_in(hello.founded))
    return Error{"implausible", hello.name + " names another cluster than its job has"};
  const bool other_cluster =
      hello.cluster != ClusterId{} && state_.cluster != ClusterId{} && hello.cluster != met_as();
  if (other_cluster) {
    if (auto error = check_generation(hello)) return error;
    return Error{
        "cluster-mismatch",
        "cluster " + to_hex(hello.cluster) + " meets cluster " + to_hex(state_.cluster) +
            "; clusters never merge: point --join at the right one or use another state directory"};
  }
  if (hello.job != JobHash{} && state_.job != JobHash{} && hello.job != state_.job)
    return Error{"job-mismatch",
                 "job " + to_hex(hello.job) + " meets job " + to_hex(state_.job) +
                     ", which differ in a word of the file or in the budget (`epochs` are counted "
                     "in each node's own data; gossipctl job shows both); start without --job to "
                     "take the cluster's, or found a cluster of your own"};
  return std::nullopt;
}

void Conductor::on_hello(Session& session, const Hello& hello, Instant now) {
  if (session.theirs) return refuse(session, Error{"handshake", "a second hello"}, now);
  session.theirs = hello;
  if (session.theirs->address.host.empty()) session.theirs->address.host = session.remote.host;
  if (session.outbound) {
    note_found(session.remote, hello.id, hello.name + ", another node, answers there");
    accuse_all_at(session.remote, hello.id, "another node answers at its address", now);
  }
  if (const auto error = check_hello(hello)) {
    if (error->code == "left" && hello.leaving && hello.founded == state_.cluster)
      note_left(hello, now);
    if (error->code == "self") on_reflected(session, now);
    if (error->code == "self" && session.outbound) dialer_.founding().on_self(session.remote);
    if (error->code == "both-joining" && session.outbound && hello.founds)
      dialer_.founding().on_rival(session.remote);
    else if (error->code == "both-joining" && session.outbound &&
             dialer_.founding().on_free(session.remote, hello.id))
      log(Level::info, "event=no-cluster-there endpoint=" + to_string(session.remote) +
                           " name=" + log_word(hello.name));
    if (error->code == "cloned") {
      const Cloned notice = clones_.meet(hello, config_.advertise, session.theirs->address);
      send(session, notice);
      refuse(session, *error, now);
      const bool keeps = notice.keeps == clones_.instance();
      return keeps ? on_cloned(notice, NodeId{}, now) : take_another_id(notice, now);
    }
    // A node that has left refuses as well, and names others before it does.
    const bool we_left = life_.is_going();
    const bool same_cluster = hello.cluster == met_as() || hello.cluster == ClusterId{};
    if (error->code == "left" && we_left && same_cluster) {
      // It may be the only node that two others both know, or two clones.
      if (!hello.leaving && !is_alone(session, now)) return;
      if (!hello.leaving && hello.cluster == met_as()) learn_from(hello, now);
      send_records(session, directory_.sample(named_when_refused, random_));
    }
    if (error->code == "left" && !we_left && session.outbound && session.probed == NodeId{}) return;
    // The member refuses as well, and names others before it does.
    if (error->code == "no-job" && state_.cluster != ClusterId{})
      send_records(session, directory_.sample(named_when_refused, random_));
    else if (error->code == "no-job" && hello.cluster != ClusterId{})
      return;
    if (error->code == "newer-job" || error->code == "older-job")
      return on_other_generation(session, *error, now);
    return refuse(session, *error, now);
  }
  session.protocol = *common_protocol(protocols(), {hello.protocol, hello.newest});
  if (is_alone(session, now)) admit(session, now);
}

// ---- let in or refused --------------------------------------------------------------------------

void Conductor::admit(Session& session, Instant now) {
  const Hello& hello = *session.theirs;
  if (session.probed != NodeId{}) return on_probe_answered(session, now);
  if (hello.probe) return;  // our own hello was the answer
  Neighbour* neighbour = peers_.neighbour(hello.id);
  if (neighbour != nullptr && now < neighbour->quarantined_until)
    return refuse(session,
                  Error{"quarantined",
                        "this peer went beyond what is allowed; it is let in again in " +
                            std::to_string(
                                static_cast<int>(seconds(neighbour->quarantined_until - now)) + 1) +
                            " s"},
                  now);
  if (neighbour != nullptr && !neighbour->allowance.admit_link(now))
    return on_flood(session, "links come faster than any line breaks", now);
  if (Session* existing = peers_.session_of(hello.id); existing != nullptr) {
    if (keep_existing(*existing, session))
      return refuse(session, Error{"duplicate", "there is a session already"}, now);
    close(existing->id, "replaced by a newer session", now, true);
  } else if (peers_.established() >= config_.membership.accepted_links() &&
             !admits_beyond_its_links(session, now)) {
    send_records(session, directory_.sample(named_when_refused, random_));
    return refuse(session,
                  Error{"full", "this node has all the links it accepts; ask the members it named"},
                  now);
  }
  establish(session, now);
}

// Both ends must keep the same one of two sessions: the one that the lower id dialled; of two in
// one direction, or after a restart, the newer.
bool Conductor::keep_existing(const Session& existing, const Session& fresh) const {
  // Of another process, which may have been followed by this one: if both live, both will dial. A
  // copy of a disk may have the lower incarnation, and so may a restart from a backup.
  if (existing.theirs->instance != fresh.theirs->instance) return false;
  if (existing.theirs->incarnation != fresh.theirs->incarnation)
    return existing.theirs->incarnation > fresh.theirs->incarnation;
  if (existing.outbound == fresh.outbound) return false;
  const bool lower_is_self = raw(state_.id) < raw(fresh.theirs->id);
  return existing.outbound == lower_is_self;
}

void Conductor::establish(Session& session, Instant now) {
  const Hello& hello = *session.theirs;
  if (state_.cluster == ClusterId{}) {
    state_.cluster = hello.founded;
    state_.generation = hello.generation;
    if (hello.generation > JobGeneration::founding) state_.meeting_in = hello.cluster;
    // Of another of the cluster's jobs, and so of other figures.
    if (job_.named_by != ClusterId{} && job_.named_by != hello.cluster) {
      directory_ = Directory(state_.id, config_.membership.known_max);
      progress_.set({});
      renew_own_record(now);
    }
    if (source_.trainer_stands() && progress_.budget().revision > 0)
      emit(BudgetEffect{progress_.in_force()});
    publish_progress(now);
    log(Level::info, "event=cluster-joined cluster=" + to_hex(state_.cluster));
  }
  void_lonely_verdicts(now);
  peers_.establish(session);
  detector_.on_established(session.id, hello.id);
  ping(session, now);  // before anything large is on the way, so it measures the line alone
  if (session.outbound) dialer_.on_linked(session.remote);
  dialer_.reach().on_linked(hello.id, hello.address,
                            session.outbound && session.remote == hello.address);
  drop_life_beyond_refuting(hello);
  learn_from(hello, now);
  accuse_all_at(session.theirs->address, hello.id, "another node is at its address", now);
  directory_.heard_from(hello.id, now);
  log(Level::info, "event=link-up peer=" + to_hex(hello.id) + " name=" + log_word(hello.name) +
                       " direction=" + (session.outbound ? "out" : "in"));
  persistence_.urge();
  session.news_told = directory_.news();
  std::vector<MemberRecord> records{directory_.self()};  // what the peer may know from others
  if (const Directory::Entry* known = directory_.find(hello.id);
      known != nullptr && known->record.samples > 0)
    records.push_back(known->record);
  send_records(session, std::move(records));
  send(session, Digest{directory_.digest()});
  send_stats(session, 0, now);
  if (state_.job == JobHash{} && hello.job != JobHash{}) send(session, JobRequest{});
  ask_for_file(now);
  if (source_.trainer_stands()) {
    if (life_.is(Phase::joining) && source_.has_model()) begin_training(now);
    send_ready(session, now);
  }
  session.replaces = session.outbound && dialer_.is_rotating(session.remote);
  if (session.replaces) dialer_.end_rotation();
}

// A life of the member that is known here and that it would never refute is a lie, or its disk's
// loss: what it says itself takes its place.
void Conductor::drop_life_beyond_refuting(const Hello& hello) {
  const Directory::Entry* known = directory_.find(hello.id);
  if (known != nullptr &&
      !is_plausible_incarnation(known->record.incarnation, hello.incarnation, Told::of_us))
    directory_.drop_life(hello.id);
}

// A hello may bring a higher incarnation than gossip has brought yet.
void Conductor::learn_from(const Hello& hello, Instant now) {
  MemberRecord record;
  record.id = hello.id;
  record.name = hello.name;
  record.address = hello.address;
  record.incarnation = hello.incarnation;
  if (const auto* known = directory_.find(hello.id);
      known == nullptr || known->record.incarnation < hello.incarnation) {
    if (known != nullptr) record.samples = known->record.samples, record.step = known->record.step;
    directory_.expect(hello.id);
    merge_records({record}, now);
  }
}

void Conductor::refuse(Session& session, Error reason, Instant now) {
  const bool quiet = reason.code == "duplicate" || reason.code == "self" || reason.code == "full" ||
                     reason.code == "cloned" ||
                     (reason.code == "both-joining" && dialer_.founding().is_wanted());
  const bool passes = reason.code == "no-job";  // mostly within a round trip
  log(quiet    ? Level::debug
      : passes ? Level::info
               : Level::warning,
      "event=refuse peer=" + who(session) + " code=" + reason.code +
          " reason=" + log_quoted(reason.text));
  if (!quiet) note_refusal(true, who(session), reason, now);
  if (session.outbound && reason.code != "duplicate" && !passes) dialer_.on_refused(session.remote);
  send(session, Refuse{reason});
  close(session.id, "refused: " + reason.code, now, true);
}

// ---- the link opens -----------------------------------------------------------------------------

void Conductor::send_ready(Session& session, Instant now) {
  if (session.ready_mine || !config_.exchange.enabled) return;
  Neighbour& neighbour = peers_.neighbour_of(session);
  if (!neighbour.link)
    neighbour.link =
        std::make_unique<Link>(state_.id, session.theirs->id, schema_, config_.exchange,
                               transfer_guard_.get(), config_.workers);
  peers_.bound_replicas(config_.membership.accepted_links());
  Ready ready;
  ready.schema = schema_.hash();
  ready.has_model = !needs_model();
  ready.nonce = random_.next();
  neighbour.link->describe(ready);
  if (has_hardly_begun()) {
    ready.initial = source_.initial().hash();
    ready.initial_age = source_.initial().age();
    session.initial = source_.initial().values();
  }
  if (needs_model()) order_blocks(session.theirs->id, ready, now);
  session.ready_mine = ready;
  send(session, ready);
}

void Conductor::try_open(Session& session, Instant now) {
  if (!session.ready_mine || !session.ready_theirs) return;
  Neighbour& neighbour = peers_.neighbour_of(session);
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
  neighbour.turn_owed_since = now;
  const InitialModel::Values initial = std::exchange(session.initial, nullptr);
  if (neighbour.link->open(*session.ready_mine, *session.ready_theirs, session.protocol, initial)) {
    auto state =
        std::make_shared<const Bytes>(encode_replica_state(neighbour.link->replica_state()));
    send_bulk(session, std::move(state));
  }
  if (!needs_model() || !neighbour.link->received_complete()) return;
  source_.initial().inherit(session.ready_theirs->initial_age);
  adopt(now);
}

}  // namespace gossipd
