// Construction, time, and what must always hold.
#include <algorithm>
#include <utility>

#include "core/node/conductor.h"

namespace gossipd {
namespace {

constexpr Duration look_period = std::chrono::milliseconds(100);
constexpr Duration overlay_period = std::chrono::milliseconds(100);
// so that nothing else depends on this draw
constexpr std::uint64_t instance_salt = 0x696e7374616e6365;

NodeState begin_life(NodeState state) {
  state.incarnation = std::min(state.incarnation, counter_max - 2) + 1;
  state.former_job = {};
  return state;
}

}  // namespace

Conductor::Conductor(NodeConfig config, NodeState state, Instant now)
    : config_(std::move(config)),
      state_(begin_life(std::move(state))),
      random_(config_.random_seed ^ raw(state_.id)),
      life_(state_.left),
      source_(schema_),
      progress_({.own = state_.own_samples,
                 .former = state_.former_samples,
                 .rate = state_.samples_per_second,
                 .budget = state_.budget}),
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
              state_.former_id, now),
      dialer_(config_.membership, config_.advertise, config_.leads_here, config_.seeds,
              config_.founds, config_.advertise_by_operator),
      detector_(config_.membership, now),
      persistence_(now, state_.down_for, state_.unsure_for),
      round_(config_.exchange, schema_, config_.workers),
      balancer_(config_.balance) {
  GOSSIPD_ASSERT(state_.id != NodeId{});
  if (config_.name.size() > name_bytes_max) config_.name.resize(name_bytes_max);
  life_.wait_for(dialer_.seeds().empty() ? "a job" : "a seed to answer");
  renew_own_record(now);
  for (const MemberRecord& record : std::exchange(state_.members, {}))
    (void)directory_.merge(record, now);
  for (const NodeId id : std::exchange(state_.met, {})) directory_.recall_met(id);
  credit_claims(now);
  persist();
}

Instant Conductor::next_deadline() const {
  const bool next_look = round_.looks_again(phase()) && round_.is_waiting() &&
                         round_.rest_look() > detector_.looked_at();
  return next_look ? std::min(timers_.next(), round_.rest_look()) : timers_.next();
}

// What follows from the present state, whatever event has led to it: no event has to remember what
// depends on it. Phases first, then the trainer, then what peers and the disk are told.
void Conductor::settle(Instant now) {
  if (life_.is_stopping()) return;
  check_next_job(now);
  if (life_.is_stopping()) return;
  found_if_due(now);
  settle_samples(now);
  check_finish(now);
  check_leave(now);
  begin_round_if_due(now);
  if (has_news_of_itself()) {
    renew_own_record(now);
    // what comes soon after goes with the next look, like the others' news
    if (timers_.may_tell(look_period, now)) gossip(now);
  }
  if (persistence_.is_urgent()) persist();
}

// Nobody knows yet how fast the others train, and of a short job much is over before the second
// tick.
void Conductor::speak_early(Instant now) {
  if (!timers_.take_early_word(2 * config_.membership.tick, now)) return;
  renew_own_record(now);
  credit_claims(now);
  progress_.look_again();
  gossip(now);
}

void Conductor::on_tick(Instant now) {
  renew_own_record(now);
  credit_claims(now);
  progress_.look_again();  // estimates of samples grow with time
  if (persistence_.is_due(now)) persistence_.urge();
  if (!life_.is(Phase::left)) accuse_displaced(now);
  gossip(now);
  dial_back(now);
  name_bad_paths(now);
  close_stalled_links(now);
}

void Conductor::on_time(Instant now) {
  note_attention(now);
  if (life_.is_stopping()) return;
  const bool tick = timers_.take(Duty::tick, config_.membership.tick, now);
  if (timers_.take(Duty::look, look_period, now)) {
    detect_failures(now);
    ask_for_file(now);
    if (!tick) {
      tell_news(now);
      speak_early(now);
    }
    for (auto& [id, session] : peers_.sessions())
      if (session.established() && session.round_trip.due(now)) ping(session, now);
    seek_model(now);
  }
  if (tick) on_tick(now);
  if (timers_.take(Duty::overlay, overlay_period, now)) look_after_overlay(now);
}

std::vector<std::uint64_t> Conductor::hashes_of(NodeId peer, Link::Which which) const {
  std::vector<std::uint64_t> hashes;
  const Neighbour* neighbour = peers_.neighbour(peer);
  if (neighbour == nullptr || !neighbour->link || !neighbour->link->has_replicas()) return hashes;
  for (std::size_t block = 0; block < schema_.blocks().size(); ++block)
    hashes.push_back(
        neighbour->link->is_known(which, block) ? neighbour->link->hash_of(which, block) : 0);
  return hashes;
}

void Conductor::check_invariants() const {
  peers_.check_invariants();
  dialer_.check_invariants();
  GOSSIPD_ASSERT(directory_.self().incarnation == state_.incarnation || life_.is(Phase::left));
  GOSSIPD_ASSERT(peers_.established() == 0 || durable_.allows(state_.incarnation));
  GOSSIPD_ASSERT(refusals_.latest().size() <= refusals_max &&
                 directory_.entries().size() <= members_max);
  detector_.check_invariants();
}

}  // namespace gossipd
