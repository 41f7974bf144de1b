// The exchange: what a round needs to know, and what is done with its outcome. How a round goes is
// in exchange_round.h.
#include <algorithm>
#include <utility>

#include "core/base/printable.h"
#include "core/node/conductor.h"

namespace gossipd {
namespace {

bool is_power_of_two(std::uint64_t x) { return x > 0 && (x & (x - 1)) == 0; }

}  // namespace

std::vector<RoundLink> Conductor::round_links() const {
  std::vector<RoundLink> links;
  for (const auto& [id, neighbour] : peers_.neighbours()) {
    if (!neighbour.link) continue;
    RoundLink& item = links.emplace_back(RoundLink{.peer = id, .link = *neighbour.link});
    const Session* session = peers_.find(neighbour.session);
    if (session == nullptr) continue;
    item.connected = true;
    item.outstanding = session->bulk_outstanding;
    item.rtt_seconds = session->round_trip.smoothed_seconds();
    item.least_rtt_seconds = session->round_trip.least_seconds();
  }
  return links;
}

RoundContext Conductor::round_context(std::span<RoundLink> links, Instant now) {
  return {.now = now,
          .phase = phase(),
          .links = links,
          .directory = directory_,
          .random = random_,
          .weight = own_weight(),
          .weight_max = balancer_.share_max(job_batch())};
}

void Conductor::begin_round_if_due(Instant now) {
  if (!round_.is_waiting()) return;
  std::vector<RoundLink> links = round_links();
  round_.begin_if_due(round_context(links, now));
}

bool Conductor::has_work() const { return round_.has_work() || is_adopting(); }

void Conductor::work(Instant now) {
  if (is_adopting()) adopt(now);
  if (!round_.has_work()) return;
  std::vector<RoundLink> links = round_links();
  on_round(round_.work(round_context(links, now)), now);
}

void Conductor::on_snapshot(Snapshot snapshot, Instant now) {
  GOSSIPD_ASSERT(source_.trainer_stands());
  note_attention(now);  // by the step time of before: this one's may hold a stand-still
  progress_.on_snapshot(snapshot.samples);
  source_.initial().on_step(snapshot.step, config_.exchange.joiner_steps);
  round_.on_snapshot(std::move(snapshot), open_links(), now);
  note_rate();
  balance();
  if (!round_.last().finite) on_round(round_.on_not_finite(steps_allowed()), now);
  if (!round_.is_waiting()) return;
  if (final_.is_due() && life_.is(Phase::finished)) write_final();
}

void Conductor::note_rate() {
  const Snapshot& last = round_.last();
  if (last.step_seconds <= 0 || last.batch == 0) return;
  // a node that restarts without a rate can judge nobody's claims
  if (progress_.rate() == 0) persistence_.request();
  progress_.note_rate(last.batch / last.step_seconds);
}

void Conductor::on_round(RoundOutcome outcome, Instant now) {
  for (auto& [peer, message] : outcome.messages)
    if (Session* session = peers_.session_of(peer)) send_bulk(*session, std::move(message));
  switch (outcome.kind) {
    case RoundOutcome::Kind::under_way: return;
    case RoundOutcome::Kind::taken_back:
      log_taken_back(outcome.why);
      if (!steps_allowed()) final_.moved(1);  // how far is not known, so `final` is written again
      [[fallthrough]];
    case RoundOutcome::Kind::handed_back:
      final_.moved(outcome.moved_at_rest);
      hand_out(std::move(outcome.update));
      return rest_offenders(outcome.offenders, now);
    case RoundOutcome::Kind::broken: return own_model_broken(outcome.why, now);
  }
}

void Conductor::hand_out(Update update) {
  update.batch = balancer_.wanted();
  if (balancer_.weighs_rate()) update.rate_scale = balancer_.share(job_batch());
  emit(UpdateEffect{std::move(update)});
  recall_if_owing();
}

void Conductor::recall_if_owing() {
  if (round_.recalls(round_links())) emit(RequestSnapshotEffect{});
}

// A node that keeps jumping says so ever more seldom.
void Conductor::log_taken_back(const std::string& what) {
  if (!is_power_of_two(round_.own_steps().guard().jumps_in_a_row())) return;
  const std::string trouble = round_.trouble();
  log(Level::warning,
      "event=step-taken-back " + what + " hint=" +
          log_quoted(trouble.empty()
                         ? "look at the learning rate, and for a bad sample among those of these "
                           "steps"
                         : trouble));
}

void Conductor::own_model_broken(const std::string& where, Instant now) {
  // A leaving node publishes nothing more but still completes its leave.
  if (set_phase(Phase::broken,
                where + "; nothing is published until a neighbour's model has been taken") ||
      life_.is(Phase::leaving))
    source_.on_broken(round_.own_steps().guard(), round_.snapshot_at());
  if (const std::string trouble = round_.trouble(); !trouble.empty())
    log(Level::warning, "event=model-broken hint=" + log_quoted(trouble));
  adopt(now);
}

void Conductor::rest_offenders(const std::vector<NodeId>& peers, Instant now) {
  for (const NodeId peer : peers)
    if (Session* session = peers_.session_of(peer))
      quarantine(*session, "its model keeps pulling too far", now);
}

void Conductor::balance() {
  const Snapshot& last = round_.last();
  if (!config_.balance.enabled || !steps_allowed() || last.batch_is_fixed) return;
  const BatchBalancer::Pace pace{.step = last.step,
                                 .step_seconds = last.step_seconds,
                                 .batch = last.batch,
                                 .job_batch = job_batch()};
  if (balancer_.on_snapshot(pace, others_that_train()))
    log(Level::debug, "event=batch from=" + std::to_string(last.batch) +
                          " to=" + std::to_string(balancer_.wanted()));
}

// By the speeds that the records of the members tell.
BatchBalancer::Others Conductor::others_that_train() const {
  BatchBalancer::Others others;
  for (const auto& [id, entry] : directory_.entries()) {
    const MemberRecord& record = entry.record;
    if (id == state_.id || entry.suspect || record.state != MemberState::alive ||
        record.phase != Phase::training || record.samples_per_second <= 0)
      continue;
    ++others.members;
    others.samples_per_second += std::min(record.samples_per_second, claims_.rate_max());
  }
  return others;
}

float Conductor::own_weight() const {
  const ExchangePolicy& policy = config_.exchange;
  const Step step = round_.last().step;
  if (life_.is_at_end()) return weight_.at_end(policy);
  const double share = balancer_.weighs_mixing() ? balancer_.share(job_batch()) : 1.0;
  if (!steps_allowed()) return weight_.interrupted(policy, step, round_.taken(), share);
  return weight_.training(policy, step, share);
}

}  // namespace gossipd
