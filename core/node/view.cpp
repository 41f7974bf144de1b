// The view of a node, component by component.
#include <algorithm>
#include <utility>

#include "core/node/conductor.h"

namespace gossipd {
namespace {

MemberState shown_state(const Directory::Entry& entry) {
  const bool suspect = entry.suspect && entry.record.state == MemberState::alive;
  return suspect ? MemberState::suspect : entry.record.state;
}

MemberView member_view(const Directory::Entry& entry, Instant now) {
  MemberView member;
  member.record = entry.record;
  member.record.state = shown_state(entry);
  member.age_s = std::max(0.0, seconds(now - entry.refreshed));
  return member;
}

void show_session(const Peers::Session& session, LinkView& item) {
  item.session = session.id;
  item.outbound = session.outbound;
  item.protocol = session.protocol;
  item.rtt_ms = session.round_trip.smoothed_seconds() * 1e3;
  item.clock_ahead_s = session.clock_ahead_s;
}

void show_link(const Link& link, Instant now, LinkView& item) {
  item.counters = link.counters();
  item.age_s = link.age_seconds(now);
  if (link.peer_step_seconds() > 0) item.age_steps = item.age_s / link.peer_step_seconds();
}

const char* link_state(const Peers::Session* session, const Directory::Entry* entry,
                       const Link* link) {
  if (session == nullptr) return "down";
  if (entry != nullptr && entry->suspect) return "suspect";
  return link != nullptr && link->is_open() ? "open" : "opening";
}

}  // namespace

NodeSummary Conductor::summary(Instant now) const {
  NodeSummary view{identity_view(), samples_view(now), training_view(), member_totals()};
  for (const auto& [id, neighbour] : peers_.neighbours()) {
    const Session* session = peers_.find(neighbour.session);
    const Link* link = neighbour.link.get();
    view.links_open += link_state(session, directory_.find(id), link) == std::string_view("open");
  }
  view.refusals.assign(refusals_.latest().begin(), refusals_.latest().end());
  view.waiting_for = waiting_for();
  return view;
}

std::vector<DivisionMember> Conductor::who_divides() const {
  return gossipd::who_divides(directory_, phase());
}

IdentityView Conductor::identity_view() const {
  return {.id = state_.id,
          .name = config_.name,
          .cluster = state_.cluster,
          .incarnation = state_.incarnation,
          .phase = phase(),
          .isolated = directory_.entries().size() > 1 && peers_.established() == 0,
          .reachability = dialer_.reach().own(),
          .not_reached = dialer_.reach().why_not(),
          .job = state_.job,
          .generation = state_.generation,
          .schema = source_.trainer_stands() ? schema_.hash() : SchemaHash{}};
}

SamplesView Conductor::samples_view(Instant now) const {
  return {.own_samples = progress_.own(),
          .remembered_samples = progress_.remembered(),
          .remembered_step = progress_.remembered_step(),
          .cluster_samples = progress_.own() + directory_.others_samples(),
          .cluster_samples_estimate = progress_.own() + others_estimate(now),
          .budget_samples = progress_.in_force(),
          .overridden = progress_.overridden()};
}

TrainingView Conductor::training_view() const {
  const Snapshot& last = round_.last();
  return {.step = std::max(last.step, progress_.remembered_step()),
          .loss = last.loss,
          .learning_rate = last.learning_rate,
          .samples_per_second = steps_allowed() ? directory_.self().samples_per_second : 0,
          .step_seconds = last.step_seconds,
          .batch = last.batch,
          .consensus_distance = own_consensus_distance(),
          .linked_steps = round_.linked_steps(),
          .trouble = round_.trouble(),
          .steps_taken_back = round_.own_steps().guard().jumps()};
}

// The job's file is more telling than the disk, and the disk than anything else.
std::string Conductor::waiting_for() const {
  if (const auto transfer = transfer_.progress(); transfer && life_.is(Phase::preparing))
    return "the job's file, " + std::to_string(transfer->bytes) + " of " +
           std::to_string(transfer->file.bytes) + " bytes have come";
  const bool waits_for_disk =
      life_.is(Phase::joining) ? !may_say_hello() : life_.is(Phase::leaving) && state_.left;
  if (waits_for_disk) return "the disk to take this node's state";
  if (job_.next.is_under_way() && !job_.next.is_telling())
    return "the disk to take the cluster's next job";
  if (life_.is_at_end()) {
    const std::string why = why_no_final_model();
    return why.empty() ? "" : "one model everywhere; " + why;
  }
  if (dialer_.founding().is_wanted() && state_.cluster == ClusterId{})
    return dialer_.founding().waits_for();
  if (source_.is_missing() && peers_.established() > 0)
    return "a neighbour's model" + why_no_model();
  if (life_.is(Phase::waiting_for_trainer)) return life_.absent_trainer();
  return life_.is(Phase::joining) || life_.is(Phase::waiting_for_data) ? life_.waiting_for() : "";
}

// Why no neighbour tells its model; empty: nothing is known to be wrong.
std::string Conductor::why_no_model() const {
  std::string broken;
  for (const auto& [id, session] : peers_.sessions()) {
    if (!session.established()) continue;
    const Directory::Entry* entry = directory_.find(session.theirs->id);
    if (entry == nullptr || entry->record.phase != Phase::broken) return "";
    broken = entry->record.name;
  }
  return broken.empty() ? "" : "; the training of " + broken + " is broken, its log says why";
}

MemberTotals Conductor::member_totals() const {
  MemberTotals totals{.claims_refused = claims_.refused(), .cloned = clones_.words()};
  for (const auto& [id, entry] : directory_.entries()) {
    const MemberRecord& record = entry.record;
    if (record.state == MemberState::forgotten) {
      ++totals.forgotten;
      totals.forgotten_samples += record.samples;
      continue;
    }
    const MemberState state = shown_state(entry);
    ++totals.members_by_state[raw(state)];
    if (state == MemberState::alive && record.phase == Phase::training)
      totals.cluster_samples_per_second += record.samples_per_second;
  }
  return totals;
}

std::vector<MemberView> Conductor::members(Instant now) const {
  std::map<NodeId, double> rtt_ms;
  for (const auto& [id, session] : peers_.sessions())
    if (session.established())
      rtt_ms[session.theirs->id] = session.round_trip.smoothed_seconds() * 1e3;
  std::vector<MemberView> views;
  views.reserve(directory_.entries().size());
  for (const auto& [id, entry] : directory_.entries()) {
    if (entry.record.state == MemberState::forgotten) continue;
    MemberView& member = views.emplace_back(member_view(entry, now));
    member.self = id == state_.id;
    member.cloned = clones_.is_cloned(id, now);
    member.finds_us = dialer_.reach().answers_to(id);
    if (const Reach::Finding* finding = dialer_.reach().finding(id); finding != nullptr)
      member.answers_us = finding->answers, member.no_answer = finding->reason;
    if (const auto linked = rtt_ms.find(id); linked != rtt_ms.end())
      member.linked = true, member.rtt_ms = linked->second;
  }
  return views;
}

std::vector<LinkView> Conductor::links(Instant now) const {
  std::vector<LinkView> views;
  views.reserve(peers_.neighbours().size());
  for (const auto& [id, neighbour] : peers_.neighbours()) {
    const Session* session = peers_.find(neighbour.session);
    const Link* link = neighbour.link.get();
    const Directory::Entry* entry = directory_.find(id);
    const bool known = entry != nullptr && entry->record.state != MemberState::forgotten;
    if (session == nullptr && link == nullptr && !known) continue;  // nothing is known of it
    LinkView& item = views.emplace_back();
    item.peer = id;
    item.large_packets_lost = neighbour.path.swallows_large();
    item.state = link_state(session, entry, link);
    item.quarantine_s = std::max(0.0, seconds(neighbour.quarantined_until - now));
    if (entry != nullptr) item.name = entry->record.name, item.address = entry->record.address;
    if (session != nullptr) {
      show_session(*session, item);
      item.silence_s = std::max(0.0, seconds(now - detector_.last_heard(session->id)));
    }
    if (link != nullptr) show_link(*link, now, item);
  }
  return views;
}

}  // namespace gossipd
